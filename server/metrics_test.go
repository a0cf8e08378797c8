package server_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// scraped are the series of one scrape by name and labels, as they are written.
type scraped map[string]float64

func scrape(t testing.TB, c *pawltest.Cluster, node int) scraped {
	t.Helper()
	a := c.MustGet(node, "/metrics")
	out := scraped{}
	for line := range strings.Lines(string(a.Body)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("the line %q: %v", line, err)
		}
		if _, twice := out[line[:at]]; twice {
			t.Errorf("%s is there twice", line[:at])
		}
		out[line[:at]] = value
	}
	return out
}

// own are the series that are Pawl's.
func (s scraped) own() (count int) {
	for name := range s {
		if strings.HasPrefix(name, "pawl_") {
			count++
		}
	}
	return count
}

// wall is real time, also in a bubble, where the time package has another.
func wall() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// counterOf is the counter that an event is counted in.
func counterOf(e told) string {
	switch e.kind {
	case transport.EventGranted:
		return `pawl_grants_total{mode="exclusive"}`
	case transport.EventReleased:
		return `pawl_ends_total{how="released"}`
	case transport.EventRevoked:
		return `pawl_ends_total{how="revoked"}`
	case transport.EventExpired:
		if e.reason == transport.EndedMaxHold {
			return `pawl_ends_total{how="max_hold"}`
		}
		return `pawl_ends_total{how="expired"}`
	case transport.EventSessionOpened:
		return `pawl_sessions_total{what="opened"}`
	case transport.EventSessionEnded:
		return `pawl_sessions_total{what="` + e.reason + `"}`
	}
	return map[transport.EventKind]string{
		transport.EventQueued: "pawl_queued_total", transport.EventCancelled: "pawl_waits_ended_total", transport.EventDelayed: "pawl_delays_total",
		transport.EventConverted: "pawl_conversions_total", transport.EventRaised: "pawl_raises_total",
	}[e.kind]
}

// Every node counts everything that happened, once; what was in the log when a node was started it does not count again.
func TestMetricsCountWhatHappened(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		var before []scraped
		for i := range w.Size() {
			before = append(before, scrape(t, w.Cluster, i))
		}
		want, shared := map[string]float64{}, 0.0
		for _, e := range w.happen("m") {
			if counter := counterOf(e); counter != "" {
				want[counter]++
			}
			if e.kind == transport.EventGranted {
				shared++
			}
		}
		if len(want) < 8 {
			t.Fatalf("too little happened: %v", want)
		}
		time.Sleep(time.Second) // the followers hear of it
		const exclusive = `pawl_grants_total{mode="exclusive"}`
		for i := range w.Size() {
			after := scrape(t, w.Cluster, i)
			// The events that are compared with do not tell the mode.
			after[exclusive] += after[`pawl_grants_total{mode="shared"}`]
			before[i][exclusive] += before[i][`pawl_grants_total{mode="shared"}`]
			ends := 0.0
			for counter, times := range want {
				if got := after[counter] - before[i][counter]; got != times {
					t.Errorf("%s: %s rose by %v, want %v", w.Name(i), counter, got, times)
				}
				if strings.HasPrefix(counter, "pawl_ends_total") {
					ends += times
				}
			}
			if got := after["pawl_hold_seconds_count"] - before[i]["pawl_hold_seconds_count"]; got != ends {
				t.Errorf("%s: %v holds were timed, %v ended", w.Name(i), got, ends)
			}
		}

		again := w.follower()
		w.Stop(again)
		w.Start(again)
		w.WaitNodeReady(again)
		if got := scrape(t, w.Cluster, again); got[exclusive] != 0 || got["pawl_hold_seconds_count"] != 0 || got["pawl_entries_applied_total"] > 3 {
			t.Errorf("after a restart: %v grants, %v entries", got[exclusive], got["pawl_entries_applied_total"])
		}
		w.session(time.Minute).mustHold("new")
		w.until(time.Second, "counted after the restart", func() bool { return scrape(t, w.Cluster, again)[exclusive] == 1 })
	})
}

// What a node tells of itself, and of the requests that it was sent.
func TestMetricsOfANode(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader, follower := w.Leader(), w.follower()
		rises := func(node int, series string, times float64, f func()) {
			t.Helper()
			before := scrape(t, w.Cluster, node)[series]
			f()
			if got := scrape(t, w.Cluster, node)[series] - before; got != times {
				t.Errorf("%s at %s rose by %v, want %v", series, w.Name(node), got, times)
			}
		}
		shows := func(node int, series string, want float64) {
			t.Helper()
			if got, there := scrape(t, w.Cluster, node)[series]; got != want || !there {
				t.Errorf("%s at %s is %v, want %v", series, w.Name(node), got, want)
			}
		}
		const refused = `{"name":"a","owner":"o"}`
		first := w.MustPost(leader, 200, "/v1/acquire", `{"name":"a","owner":"h","ttl_ms":60000}`)
		through := func() { w.MustPost(follower, 409, "/v1/acquire", refused) }
		rises(follower, `pawl_requests_total{code="409",from="client",route="/v1/acquire"}`, 1, through)
		rises(leader, `pawl_requests_total{code="409",from="node",route="/v1/acquire"}`, 1, through)
		rises(leader, `pawl_errors_total{code="held"}`, 1, through)
		rises(follower, `pawl_errors_total{code="held"}`, 0, through)
		rises(follower, `pawl_request_seconds_count{route="/v1/acquire"}`, 1, through)
		rises(leader, `pawl_request_seconds_count{route="/v1/acquire"}`, 0, through)
		rises(leader, `pawl_requests_total{code="404",from="client",route="other"}`, 2, func() {
			_, _ = w.Get(w.ctx, leader, "/v1/nothing")
			_, _ = w.Get(w.ctx, leader, "/v1/acquire/")
		})
		rises(leader, `pawl_requests_total{code="405",from="client",route="/v1/acquire"}`, 1, func() { _, _ = w.Get(w.ctx, leader, "/v1/acquire") })

		shows(leader, "pawl_leading", 1)
		shows(follower, "pawl_leading", 0)
		shows(follower, "pawl_leader_known", 1)
		shows(follower, "pawl_voter", 1)
		shows(leader, "pawl_locks", 1)
		shows(leader, "pawl_holds", 1)
		shows(leader, "pawl_sessions", 1)
		s := scrape(t, w.Cluster, follower)
		if s["pawl_leader_silent_seconds"] <= 0 || s["pawl_leader_silent_seconds"] > 1 || s["pawl_log_file_bytes"] < 4096 ||
			s["pawl_term"] < 1 || s["pawl_commit_index"] < 3 || s["pawl_applied_index"] < 3 || s["go_goroutines"] < 10 || s["process_open_fds"] < 3 ||
			s[`pawl_write_seconds_count{what="append"}`] < 3 || s[`pawl_write_seconds_count{what="vote"}`] < 1 || s["pawl_apply_seconds_count"] < 2 {
			t.Errorf("%s is silent for %v s, has a log of %v bytes, term %v, index %v, %v goroutines, %v writes, %v votes, applied %v", w.Name(follower),
				s["pawl_leader_silent_seconds"], s["pawl_log_file_bytes"], s["pawl_term"], s["pawl_applied_index"], s["go_goroutines"],
				s[`pawl_write_seconds_count{what="append"}`], s[`pawl_write_seconds_count{what="vote"}`], s["pawl_apply_seconds_count"])
		}

		// A wait of two seconds, then its grant.
		granted := make(chan pawltest.Answer, 1)
		go func() {
			a, _ := w.Post(w.ctx, leader, "/v1/acquire", `{"name":"a","owner":"w","wait_ms":20000}`)
			granted <- a
		}()
		time.Sleep(2 * time.Second)
		shows(leader, "pawl_waits", 1)
		shows(leader, "pawl_waiting_callers", 1)
		w.MustPost(leader, 200, "/v1/release", released(first))
		w.MustPost(leader, 200, "/v1/release", released(<-granted))
		shows(leader, "pawl_waiting_callers", 0)
		s = scrape(t, w.Cluster, leader)
		if s["pawl_wait_seconds_count"] != 1 || s["pawl_wait_seconds_sum"] < 1.9 || s["pawl_wait_seconds_sum"] > 2.1 {
			t.Errorf("%v waits of %v s, want one of 2", s["pawl_wait_seconds_count"], s["pawl_wait_seconds_sum"])
		}

		// A renewal when a quarter of the TTL is left.
		late := w.session(20 * time.Second)
		time.Sleep(15 * time.Second)
		rises(leader, `pawl_renewals_total{result="renewed"}`, 1, func() { _, _ = late.renew(w.ctx, callLimit) })
		if s := scrape(t, w.Cluster, leader); s[`pawl_renewal_left_ratio_bucket{le="0.4"}`] != 1 || s[`pawl_renewal_left_ratio_bucket{le="0.1"}`] != 0 {
			t.Errorf("the renewal was seen with %v of the TTL left", s["pawl_renewal_left_ratio_sum"])
		}

		rises(leader, `pawl_snapshots_total{result="written"}`, 1, func() {
			if err := w.Node(leader).CutSnapshot(context.Background()); err != nil {
				t.Fatal(err)
			}
		})
		if s := scrape(t, w.Cluster, leader); s["pawl_snapshot_bytes"] <= 0 || s["pawl_snapshot_index"] <= 0 {
			t.Errorf("the snapshot has %v bytes and reaches to %v", s["pawl_snapshot_bytes"], s["pawl_snapshot_index"])
		}

		changes := scrape(t, w.Cluster, follower)["pawl_leader_changes_total"]
		w.Network.Isolate(w.Name(leader))
		next := w.otherLeader(leader)
		time.Sleep(5 * time.Second) // its calls to the one that is cut off run into their limit
		s = scrape(t, w.Cluster, next)
		if s["pawl_leader_changes_total"] != changes+1 || s[`pawl_peer_failures_total{call="append"}`] == 0 {
			t.Errorf("%v changes of leaders after %v, %v failed calls", s["pawl_leader_changes_total"], changes, s[`pawl_peer_failures_total{call="append"}`])
		}
	})
}

// F06, E08: fifty thousand locks and ten thousand owners make no series, and nothing of them is told.
func TestMetricsDoNotGrowWithNames(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const lanes, mark = 16, "zebra"
		requests, owners := fewer(50_000)/transport.MaxLocks+1, fewer(10_000)
		leader := w.Leader()
		touch := func(c *caller, i int) {
			var locks []string
			for k := range transport.MaxLocks {
				locks = append(locks, fmt.Sprintf(`{"name":"%s-%d-%d"}`, mark, i, k))
			}
			node := i % w.Size()
			a, err := c.once(w.ctx, node, "/v1/acquire", fmt.Sprintf(`{"owner":"%s-owner-%d","ttl_ms":1000,"locks":[%s]}`, mark, i, strings.Join(locks, ",")))
			if err != nil || a.Status != 200 {
				t.Errorf("request %d: %v %d %s", i, err, a.Status, a.Body)
			}
			if i%8 > 0 && i < requests {
				return
			}
			for _, path := range []string{"/v1/lock?name=%s-%d-0", "/v1/%s-%d", "/v1/lock/%s-%d?x"} {
				if _, err := w.Do(w.ctx, c.http, "GET", w.URL(node)+fmt.Sprintf(path, mark, i), "", "Traceparent", url.QueryEscape(mark)); err != nil {
					t.Error(err)
				}
			}
		}
		for i := range w.Size() {
			touch(w.caller(), requests+i)
		}
		time.Sleep(5 * time.Second)
		before := scrape(t, w.Cluster, leader)

		var touching sync.WaitGroup
		for lane := range lanes {
			c := w.caller()
			touching.Go(func() {
				for i := lane; i < requests; i += lanes {
					touch(c, i)
				}
			})
		}
		touching.Wait()
		for batch := range slices.Chunk(make([]int, owners), 250) {
			w.abandon(leader, len(batch), time.Second, func(fsm.ID) string { return mark })
		}
		began := wall()
		full := w.MustGet(leader, "/metrics")
		took := wall() - began
		time.Sleep(10 * time.Second)
		empty := w.MustGet(leader, "/metrics")
		after := scrape(t, w.Cluster, leader)
		grown := len(after) - len(before)
		t.Logf("%d locks of %d requests, %d more owners: %d series, of them %d Pawl's, %+d; %d bytes in %v", requests*transport.MaxLocks, requests, owners,
			len(after), after.own(), grown, len(full.Body), took)
		if grown < -5 || grown > 5 || len(full.Body) > 300_000 {
			t.Errorf("%d series more than before, %d bytes", grown, len(full.Body))
		}
		if took > 200*time.Millisecond && !testing.Short() {
			t.Errorf("a scrape took %v", took)
		}
		if got := after[`pawl_grants_total{mode="exclusive"}`]; got < float64(requests*transport.MaxLocks+owners) {
			t.Errorf("only %v locks were granted", got)
		}
		if strings.Contains(string(full.Body)+string(empty.Body), mark) {
			t.Error("a name is told")
		}
	})
}

// abandon puts single acquires of locks into the log at a leader, each with a session and an owner of its own that nobody
// renews: what thousands of clients would have sent, without the cost of their calls.
func (w *world) abandon(leader, count int, ttl time.Duration, prefix func(fsm.ID) string) {
	w.t.Helper()
	if err := abandonAt(w.Node(leader), count, ttl, prefix); err != nil {
		w.t.Fatal(err)
	}
}

func abandonAt(leader *server.Node, count int, ttl time.Duration, prefix func(fsm.ID) string) error {
	e := fsm.Entry{Stamp: leader.Stamp()}
	for range count {
		id := newID()
		name := fmt.Sprintf("%s-%x", prefix(id), id)
		e.Commands = append(e.Commands, &fsm.Acquire{ID: id, Owner: name, TTL: uint64(ttl.Milliseconds()), Locks: []fsm.Want{{Name: name, Mode: fsm.Exclusive}}})
	}
	result, err := leader.PutEntry(context.Background(), &e)
	if err != nil {
		return err
	}
	if !result.Applied {
		return fmt.Errorf("the entry's stamp did not count")
	}
	for _, o := range result.Outcomes {
		if o.Code != fsm.OK {
			return fmt.Errorf("an acquire was answered %d", o.Code)
		}
	}
	return nil
}

var lastID struct {
	sync.Mutex
	n uint64
}

func newID() (id fsm.ID) {
	lastID.Lock()
	defer lastID.Unlock()
	lastID.n++
	copy(id[:], fmt.Sprintf("%016d", lastID.n))
	return id
}
