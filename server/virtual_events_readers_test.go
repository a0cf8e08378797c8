package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// A reader with a prefix is told of its names only, and of what concerns all. Its place moves on all the same.
func TestEventsWithAPrefix(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		l := w.listen(1, "prefix=2%2Fa", "", false)
		quiet := w.listen(2, "prefix=no", "", false)
		w.happen("1")
		var want []told
		for _, e := range w.happen("2") {
			if e.name == "2/a" {
				want = append(want, e)
			}
		}
		w.checkTold(1, l.wait(len(want)), want)
		w.MustPost(0, 200, "/v1/raise", `{"above":1000,"reason":"r"}`)
		for _, l := range []*listener{l, quiet} {
			raised := len(want)
			if l == quiet {
				raised = 0
			}
			got := l.wait(raised + 2)[raised:]
			if got[0].Kind != "raised" || got[0].Data.Reason != "r" || got[1].Kind != "reset" || got[1].Data.Reason != "raised" {
				t.Errorf("a raise is told as %+v", got)
			}
		}
		l.end()
		before, _, _, _ := quiet.state()
		w.happen("4")
		w.until(20*time.Second, "a newer place", func() bool {
			place, _, _, _ := quiet.state()
			return place != before
		})
		quiet.end()
	})
}

func TestEventsHeartbeat(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		l := w.listen(w.follower(), "", "", false)
		time.Sleep(time.Minute + time.Second)
		if _, _, notes, err := l.state(); err != nil || len(notes) != 5 { // one at the beginning
			t.Errorf("after a minute: %v %q", err, notes)
		}
		if got := l.events(); len(got) > 0 {
			t.Errorf("nothing happened, and told was %+v", got)
		}
		l.end()
	})
}

// A reader that takes nothing is cut off, and nobody else notices it.
func TestSlowReaderOfEventsIsCutOff(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		node := w.follower()
		slow := w.ClientAt("slow")
		response, err := slow.Get(w.URL(node) + "/v1/events")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		quick := w.listen(node, "", "", false)
		if got := w.Node(node).EventReaders(); got != 2 {
			t.Errorf("%d readers", got)
		}
		w.Network.Cut("slow", w.Name(node)) // so that not even a kernel would take anything for it
		var locks []string
		for i := range transport.MaxLocks {
			locks = append(locks, fmt.Sprintf(`{"name":"%02d%s"}`, i, strings.Repeat("n", 500)))
		}
		body := fmt.Sprintf(`{"owner":"o","locks":[%s]}`, strings.Join(locks, ","))
		count, began := 0, time.Now()
		for ; w.Node(node).EventReaders() == 2; time.Sleep(100 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("after %d events the slow reader is still there", count)
			}
			var g transport.AcquireResponse
			w.MustPost(node, 200, "/v1/acquire", body).Into(t, &g)
			w.MustPost(node, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Locks[0].Token))
			count += 2 * transport.MaxLocks
		}
		t.Logf("cut off after %v and %d events", time.Since(began).Round(time.Millisecond), count)
		for i, e := range quick.wait(count) {
			if kind := [2]transport.EventKind{"granted", "released"}[i/transport.MaxLocks%2]; e.Kind != kind {
				t.Fatalf("event %d is %+v", i, e)
			}
		}
		quick.end()
		w.Network.HealAll()
	})
}

func TestReadersOfEventsAreBounded(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		var all []*listener
		for range 256 {
			all = append(all, w.listen(0, "", "", false))
		}
		l, refused := w.tryListen(0, "", "", false)
		if l != nil || refused.Status != 429 || problemOf(refused).Code != "rate_limited" || refused.Header.Get("Retry-After") == "" {
			t.Fatalf("the 257th reader is answered %d %s", refused.Status, refused.Body)
		}
		want := w.happen("1")
		for _, l := range all {
			w.checkTold(0, l.wait(len(want)), want)
		}
		all[0].end()
		w.until(callLimit, "a place", func() bool { return w.Node(0).EventReaders() == 255 })
		w.listen(0, "", "", false).end()
		for _, l := range all[1:] {
			l.end()
		}
	})
}

// A node that stops lets its readers go at once, and tells them to come back soon; to another node, for it refuses.
func TestEventsOfANodeThatStops(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		node := w.follower()
		l := w.listen(node, "", "", false)
		want := w.happen("1")
		l.wait(len(want))
		w.stopWithin(node, 3*time.Second)
		<-l.ended
		place, retry, _, err := l.state()
		if err != nil || retry != "500" {
			t.Errorf("the stream ended with %v, to be tried again after %q", err, retry)
		}
		w.happen2(w.Leader(), "2")
		l = w.listen(w.Leader(), "", place, true)
		if got := l.wait(10); len(got) != 10 || got[0].Data.Name != "2/0" {
			t.Errorf("elsewhere is told %+v", got)
		}
		l.end()
		w.Start(node)
		w.WaitNodeReady(node)
	})
}

func TestAPIEventsBadRequests(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			for field, query := range map[string]string{
				"after":  "after=x",
				"prefix": "prefix=%00",
				"limit":  "limit=3",
			} {
				a.step(node, step{"GET /v1/events?" + query, ``, nil, 400, fmt.Sprintf(`{"code":"invalid","field":%q}`, field)})
			}
			a.step(node, step{"GET /v1/events?prefix=a&prefix=b", ``, nil, 400, `{"code":"invalid","field":"prefix"}`})
			a.step(node, step{"GET /v1/events?after=1.1", ``, []string{"Last-Event-ID", "1"}, 400, `{"code":"invalid","field":"Last-Event-ID"}`})
			a.step(node, step{"POST /v1/events", `{}`, nil, 405, `{"code":"method_not_allowed"}`})
		}
	})
}
