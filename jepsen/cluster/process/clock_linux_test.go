package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/transport"
)

// moment is what the client of TestWallClocksChangeNoLease prints all the time.
type moment struct {
	Wall  time.Time // as it shows the time
	Since int64     // seconds between two looks at its wall clock, by the monotonic one: 0
	Token transport.Token
	Lost  string // why it does not hold the lock any more
}

// beHolder holds a lock until its input ends.
func beHolder(endpoints []string) error {
	c, err := client.New(endpoints, client.WithTTL(clockTTL))
	if err != nil {
		return err
	}
	lock, err := c.Acquire(context.Background(), "renewed")
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	out := json.NewEncoder(os.Stdout)
	last := time.Now()
	for {
		now := time.Now()
		m := moment{Wall: now.Round(0), Since: int64(now.Sub(last) / time.Second), Token: lock.Token()}
		last = now
		if err := lock.Err(); err != nil {
			m.Lost = err.Error()
		}
		if err := out.Encode(m); err != nil {
			return err
		}
		select {
		case <-ended:
			return errors.Join(lock.Release(context.Background()), c.Close(context.Background()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// needsClocks skips a test where one process's clock cannot be set.
func needsClocks(t *testing.T) {
	t.Helper()
	const why = "clocks of single processes are set on amd64 only"
	switch {
	case runtime.GOARCH == "amd64":
	case os.Getenv("PAWL_CI") == "1":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// off is how far the wall clock of a node is from this process's, as its answers show it.
func (w *world) off(node int) time.Duration {
	w.t.Helper()
	response, err := w.http.Get(w.api(node) + "/livez")
	w.do(err)
	_ = response.Body.Close()
	at, err := http.ParseTime(response.Header.Get("Date"))
	w.do(err)
	return time.Until(at)
}

// shows waits until a clock is so far off.
func (w *world) shows(host string, off func() time.Duration, want time.Duration) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s is %v off: %v", host, want, off()), 3*time.Second, func() bool {
		return (off() - want).Abs() < 3*time.Second
	})
}

func TestAHostKeepsItsClock(t *testing.T) {
	needsClocks(t)
	t.Parallel()
	w := newWorld(t, 2, 0)
	n1 := func() time.Duration { return w.off(0) }
	w.do(w.StepClock(0, 0)) // nothing yet
	w.do(w.StepClock(0, 5*time.Hour))
	w.shows("n1", n1, 5*time.Hour)
	w.do(w.Kill(0))
	w.do(w.StepClock(0, time.Hour)) // nobody is there to see it
	w.do(w.Start(0))
	w.ready()
	w.shows("n1, started again,", n1, 6*time.Hour)
	w.do(w.Pause(1))
	w.do(w.StepClock(1, -24*time.Hour))
	if states, _ := threads(w.nodes[1].process.pid()); strings.Trim(states, "T") != "" {
		t.Errorf("a paused node was let go by its clock: %s", states)
	}
	w.do(w.Resume(1))
	w.ready()
	w.shows("n2", func() time.Duration { return w.off(1) }, -24*time.Hour)
	w.do(w.StepClock(0, -6*time.Hour))
	w.shows("n1, healed,", n1, 0)
	// What cannot be is no step: there is no such process.
	if err := setWallClock(1<<22+1, time.Hour); err == nil || errors.Is(err, cluster.ErrUnsupported) {
		t.Errorf("the clock of nobody: %v", err)
	}
}

// clockTTL is the lease of TestWallClocksChangeNoLease. The scenario has 10 s: half of it costs half the time.
const clockTTL = 5 * time.Second

// Scenario A21: the wall clock of the leader jumps an hour ahead and back, and further back, then that of a client. The holder that
// renews keeps its lock, those that do not lose theirs after the TTL, and no remaining time is absurd.
func TestWallClocksChangeNoLease(t *testing.T) {
	needsClocks(t)
	t.Parallel()
	w := newWorld(t, 3, 1)
	leader := w.leader()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Spawn(ctx, 0, append([]string{"be-a-holder"}, w.endpoints()...), nil) }()
	moments := func() (all []moment) {
		log, err := os.Open(filepath.Join(w.options.Dir, "client0.log"))
		if err != nil {
			return nil
		}
		defer log.Close()
		for lines := bufio.NewScanner(log); lines.Scan(); {
			var m moment
			if json.Unmarshal(lines.Bytes(), &m) == nil && !m.Wall.IsZero() {
				all = append(all, m)
			}
		}
		return all
	}
	w.eventually("a client that holds", 10*time.Second, func() bool { return len(moments()) > 0 })

	// Holders that are never heard of again, and when they were: from sent to granted is when their leases began.
	type silent struct{ sent, granted, freed time.Duration }
	holds := map[string]*silent{}
	abandon := func(name string) {
		t.Helper()
		h := &silent{sent: w.Now()}
		var answer transport.AcquireResponse
		body := fmt.Sprintf(`{"name":%q,"owner":"silent","ttl_ms":%d}`, name, clockTTL.Milliseconds())
		w.do(w.ask(w.within(5*time.Second), &w.http, http.MethodPost, w.api(leader)+"/v1/acquire", strings.NewReader(body), &answer))
		h.granted = w.Now()
		holds[name] = h
	}
	looks := 0
	look := func() {
		t.Helper()
		var there []string
		for i := range 3 {
			for _, consistency := range []string{"", "?consistency=stale"} {
				var answer transport.LocksResponse
				w.do(w.get(w.within(5*time.Second), i, "/v1/locks"+consistency, &answer))
				for _, lock := range answer.Locks {
					for _, holder := range lock.Holders {
						looks++
						if holder.RemainingMS < 0 || holder.RemainingMS > clockTTL.Milliseconds() {
							t.Errorf("%s%s says %d ms remain of %v of %s", name(i), consistency, holder.RemainingMS, clockTTL, lock.Name)
						}
					}
					if consistency == "" {
						there = append(there, lock.Name)
					}
				}
			}
		}
		if !slices.Contains(there, "renewed") {
			t.Error("the lock that is renewed is free")
		}
		for name, h := range holds {
			if h.freed == 0 && !slices.Contains(there, name) {
				h.freed = w.Now()
			}
		}
	}
	lookFor := func(d time.Duration) {
		t.Helper()
		for end := w.Now() + d; w.Now() < end; {
			look()
			w.do(w.Sleep(t.Context(), 50*time.Millisecond))
		}
	}

	atLeader := func() time.Duration { return w.off(leader) }
	atClient := func() time.Duration {
		info, all := time.Now(), moments()
		return all[len(all)-1].Wall.Sub(info)
	}
	var off time.Duration
	for i, step := range []time.Duration{time.Hour, -time.Hour, -time.Hour} {
		abandon(fmt.Sprintf("before step %d of the leader", i))
		w.do(w.StepClock(leader, step))
		off += step
		w.shows("the leader", atLeader, off)
		lookFor(400 * time.Millisecond)
	}
	off = 0
	for i, step := range []time.Duration{time.Hour, -2 * time.Hour} {
		abandon(fmt.Sprintf("before step %d of the client", i))
		w.do(w.StepClock(w.size, step))
		off += step
		w.shows("the client", atClient, off)
		lookFor(400 * time.Millisecond)
	}
	w.eventually("all are freed", 2*clockTTL, func() bool {
		look()
		for _, h := range holds {
			if h.freed == 0 {
				return false
			}
		}
		return true
	})
	for name, h := range holds {
		t.Logf("%s: freed after %v", name, (h.freed - h.granted).Round(time.Millisecond))
		if h.freed < h.sent+clockTTL || h.freed > h.granted+clockTTL+time.Second {
			t.Errorf("%s: acquired from %v to %v, freed at %v", name, h.sent, h.granted, h.freed)
		}
	}
	stop()
	w.do(<-ended)
	all := moments()
	for _, m := range all {
		if m.Lost != "" || m.Token != all[0].Token || m.Since != 0 {
			t.Errorf("the client that renews: %+v", m)
			break
		}
	}
	if now := w.leader(); now != leader {
		t.Errorf("%s led, now %s does", name(leader), name(now))
	}
	// The node's own log shows the steps, too: it is written with its wall clock.
	w.logShows(leader, -time.Hour)
	t.Logf("%d looks, %d moments of the client", looks, len(all))
}

// logShows fails the test unless a node's log has a line of a time that is so far off.
func (w *world) logShows(node int, off time.Duration) {
	w.t.Helper()
	// Something to write about: each change of leader is.
	w.do(w.Transfer((node + 1) % w.size))
	w.eventually(fmt.Sprintf("a line in the log that is %v off", off), 5*time.Second, func() bool {
		for line := range strings.Lines(w.Logs()[w.nodes[node].name]) {
			var entry struct {
				Time time.Time `json:"@timestamp"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && (time.Until(entry.Time)-off).Abs() < time.Minute {
				return true
			}
		}
		return false
	})
}
