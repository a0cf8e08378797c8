package server_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// F10: ten thousand wait for a hundred locks, without number or key, and vanish: half with a reset, half silently. Within 30 s
// nothing is left of them on any node, and those who came behind them and live are granted at once.
func TestTenThousandWhoseClientsVanish(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		locks, each, wait := 100, 100, 5*time.Minute
		if testing.Short() {
			locks = 20
		}
		w.Network.SetKeepAlive(11 * time.Second) // that of the peer package's TCP
		holder := w.session(time.Hour)
		for i := range locks {
			holder.mustHold(fmt.Sprintf("lock%03d", i))
		}
		time.Sleep(time.Second)
		before := runtime.NumGoroutine()
		reset, silent := w.caller(), w.caller()
		ctx, kill := context.WithCancel(w.ctx)
		var calls sync.WaitGroup
		for i := range locks {
			name := fmt.Sprintf("lock%03d", i)
			for j := range each {
				c := reset
				if j%2 == 1 {
					c = silent
				}
				calls.Go(func() {
					if g, err := c.keyless(ctx, (i+j)%w.Size(), name, time.Minute, wait); err == nil || errors.Is(err, errRefused) {
						t.Errorf("who is gone was told %+v %v", g, err)
					}
				})
			}
			w.untilQueued(name, each)
		}
		during := runtime.NumGoroutine()
		began := time.Now()
		w.Network.Crash(reset.host)
		w.Network.Isolate(silent.host)
		kill()
		calls.Wait()
		w.until(30*time.Second, "nobody waits at any node", func() bool {
			for node := range w.Size() {
				if w.Node(node).Waiters() > 0 || w.Node(node).Queued() > 0 {
					return false
				}
			}
			return true
		})
		gone := time.Since(began)
		w.until(time.Until(began.Add(30*time.Second)), "the goroutines are back at the baseline", func() bool {
			return runtime.NumGoroutine() <= before+100 // connections between nodes that are kept for a while
		})
		t.Logf("%d goroutines before, %d while they wait, %d after %v; the queues were empty after %v", before, during, runtime.NumGoroutine(), time.Since(began), gone)
		living := w.session(time.Minute)
		var granted []<-chan grant
		for i := range locks {
			granted = append(granted, living.awaited(fmt.Sprintf("lock%03d", i)))
			w.untilQueued(fmt.Sprintf("lock%03d", i), 1)
		}
		released := time.Now()
		holder.post(200, "/v1/session/close", `{"session":%q}`, holder.id)
		for _, g := range granted {
			<-g
		}
		if took := time.Since(released); took > 2*time.Second {
			t.Errorf("who lives was granted after %v", took)
		}
		w.checkAgreement()
	})
}
