package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// B09: whoever reads after a change was acknowledged sees it or is refused, at whichever node, also at a leader that was
// cut off from the others but not from the reader, and while leadership is handed over. One lock is acquired and released
// all the time; its token tells how old a read is.
func TestReadsAreLinearizable(t *testing.T) {
	faults := map[string]func(w *world, h *history, leader int){
		"leader cut off from the others": func(w *world, _ *history, leader int) {
			for i := range w.Size() {
				if i != leader {
					w.Network.Cut(w.Name(leader), w.Name(i))
				}
			}
			w.otherLeader(leader)
			time.Sleep(500 * time.Millisecond)
			w.Network.HealAll()
		},
		"leader hears the others late": func(w *world, _ *history, leader int) {
			for i := range w.Size() {
				if i != leader {
					w.Network.CutOneWay(w.Name(i), w.Name(leader))
				}
			}
			w.otherLeader(leader)
			time.Sleep(500 * time.Millisecond)
			w.Network.HealAll()
		},
		// The next leader is elected by the third and at work long before the old one hears of it. This is the case that fails
		// when nobody asks the voters before a read.
		"transfer to a far node": func(w *world, h *history, leader int) {
			next, third := (leader+1)%w.Size(), (leader+2)%w.Size()
			h.paused.Store(true) // else the far node never catches up, and is given nothing
			w.Network.SetDelay(w.Name(leader), w.Name(next), 80*time.Millisecond)
			time.Sleep(time.Second)
			w.Network.Cut(w.Name(leader), w.Name(third))
			go func() { // who hears the answer late, or not, is not the question here
				_, _ = w.Post(w.ctx, leader, "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, w.Name(next)))
			}()
			w.otherLeader(leader)
			h.paused.Store(false)
			time.Sleep(500 * time.Millisecond)
			w.Network.SetDelay(w.Name(leader), w.Name(next), time.Millisecond)
			w.Network.HealAll()
		},
		"crash": func(w *world, _ *history, _ int) { changes[1].make(w) },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				h := newHistory("x")
				ctx, stop := context.WithCancel(w.ctx)
				var running sync.WaitGroup
				writer := w.session(time.Minute)
				running.Go(func() { h.write(ctx, writer) })
				for node := range w.Size() {
					c := w.caller()
					running.Go(func() { h.read(ctx, c, node) })
				}
				for range 4 {
					fault(w, h, w.Leader())
					w.WaitReady()
					time.Sleep(200 * time.Millisecond)
				}
				stop()
				running.Wait()
				h.check(t)
			})
		})
	}
}

// history is what one writer was acknowledged and what readers saw meanwhile. A state is a number that grows with each
// change of the lock: its holder's token, or one more when that one has released it.
type history struct {
	name   string
	paused atomic.Bool // the writer's

	mu      sync.Mutex
	floor   uint64 // the newest state that was acknowledged
	reads   int
	refused int
	wrong   []string
}

func newHistory(name string) *history { return &history{name: name} }

func (h *history) write(ctx context.Context, s *session) {
	for n := uint64(1); ctx.Err() == nil; n++ {
		for h.paused.Load() {
			time.Sleep(time.Millisecond)
		}
		g, err := s.acquire(ctx, n, h.name, 0)
		if err != nil {
			return
		}
		h.acknowledged(2 * g.Token)
		if a, err := s.release(n); err != nil || a.Status != 200 {
			return
		}
		h.acknowledged(2*g.Token + 1)
		time.Sleep(time.Millisecond)
	}
}

func (h *history) acknowledged(state uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.floor = state
}

func (h *history) read(ctx context.Context, c *caller, node int) {
	var lastIndex uint64
	for ; ctx.Err() == nil; time.Sleep(3 * time.Millisecond) {
		h.mu.Lock()
		floor := h.floor
		h.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		a, err := c.w.Do(limited, c.http, http.MethodGet, c.w.URL(node)+"/v1/lock?name="+h.name, "")
		cancel()
		h.mu.Lock()
		if err != nil || a.Status != http.StatusOK {
			h.refused++
			h.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			continue
		}
		h.reads++
		var v lockView
		complain := func(format string, arguments ...any) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s: %s: %s", c.w.Name(node), fmt.Sprintf(format, arguments...), a.Body))
		}
		if err := json.Unmarshal(a.Body, &v); err != nil {
			complain("%v", err)
		}
		// A free lock tells nothing of its last holder: the index of the read does.
		index, _ := strconv.ParseUint(a.Header.Get("Pawl-Index"), 10, 64)
		switch {
		case len(v.Holders) == 1 && 2*v.Holders[0].Token < floor:
			complain("a holder older than state %d", floor)
		case index < floor/2:
			complain("index %d, and token %d was acknowledged before", index, floor/2)
		case index < lastIndex:
			complain("index %d after %d", index, lastIndex)
		}
		lastIndex = index
		h.mu.Unlock()
	}
}

func (h *history) check(t *testing.T) {
	t.Helper()
	for i, text := range h.wrong {
		if i == 10 {
			t.Errorf("… %d in all", len(h.wrong))
			break
		}
		t.Error(text)
	}
	t.Logf("%d reads, %d refused, newest state %d", h.reads, h.refused, h.floor)
	if h.reads < 100 || h.refused == h.reads {
		t.Error("hardly anything was read")
	}
}
