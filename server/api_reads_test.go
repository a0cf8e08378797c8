package server_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

func TestAPILock(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","holders":[],"queue":[],"history":"<list>","delay_remaining_ms":0}`},
			{"POST /v1/session", `{"owner":"w","ttl_ms":60000}`, nil, 201, `{"session":"<session:w>","ttl_ms":60000}`},
			{"POST /v1/acquire", `{"name":"a","owner":"h","ttl_ms":60000}`, []string{"Traceparent", trace}, 200,
				`{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":60000,"owner":"h","replayed":false}`},
			{"POST /v1/acquire", `{"locks":[{"name":"a","mode":"shared","limit":4},{"name":"b"}],"session":"${w}","request":1,"task":"job","wait_ms":1}`, nil, 202,
				`{"granted":false,"request":1,"queue":[{"name":"a","position":1},{"name":"b","position":1}]}`},
			{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","mode":"exclusive","history":"<list>","delay_remaining_ms":0,
				"holders":[{"owner":"h","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}","trace":"` + trace + `"}],
				"queue":[{"owner":"w","task":"job","mode":"shared","priority":0,"session":"${w.short}","waited_ms":"<number>","position":1,"waits_for":["a","b"]}]}`},
			{"GET /v1/lock?consistency=linearizable&name=b", ``, nil, 200, `{"name":"b","history":"<list>","delay_remaining_ms":0,"holders":[],"queue":[{"owner":"w","task":"job","mode":"exclusive","priority":0,"session":"${w.short}","waited_ms":"<number>","position":1,"waits_for":["a","b"]}]}`},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA},
			{"POST /v1/session/close", `{"session":"${w}"}`, nil, 200, `{"released":1}`},
		})
	})
}

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A26: names are bytes; none is a prefix, a folder or another spelling of another.
func TestAPINames(t *testing.T) {
	names := []string{
		"a", "ab", "a/", "a/b", "A", "/a", "//", ".", "..", "a.b", "%2e", "%2F", "%", "a b", " ", "+", "a+b", "?", "#", "&name=x", `"`, `\`, "'", "<script>",
		"ä", "a\u0308", "日本", "😀", "\u202e", "\u200b", "\ufeff", "~", string(make512()),
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			sessions := map[string]string{}
			for i, name := range names {
				answer := a.MustPost((node+i)%a.Size(), 200, "/v1/acquire", fmt.Sprintf(`{"name":%s,"owner":"o%d","ttl_ms":60000}`, quoted(name), i))
				sessions[name] = fmt.Sprintf(`{"session":%q,"token":%d}`, answer.Field("session"), int64(answer.Field("token").(float64)))
			}
			var page transport.LocksResponse
			a.MustGet(node, "/v1/locks").Into(t, &page)
			var listed []string
			for _, l := range page.Locks {
				listed = append(listed, l.Name)
			}
			if want := slices.Sorted(slices.Values(names)); !slices.Equal(listed, want) {
				t.Errorf("listed %q, want %q", listed, want)
			}
			for i, name := range names {
				var lock transport.LockResponse
				a.MustGet(node, "/v1/lock?name="+escaped(name)).Into(t, &lock)
				if lock.Name != name || len(lock.Holders) != 1 || lock.Holders[0].Owner != fmt.Sprintf("o%d", i) {
					t.Errorf("lock %q: %+v", name, lock)
				}
				a.MustPost(node, 200, "/v1/release", sessions[name])
				a.MustGet(node, "/v1/lock?name="+escaped(name)).Into(t, &lock)
				if len(lock.Holders) != 0 {
					t.Errorf("released %q: %+v", name, lock)
				}
				a.MustGet(node, "/v1/locks").Into(t, &page)
				if len(page.Locks) != len(names)-i-1 {
					t.Errorf("after releasing %q there are %d locks, want %d", name, len(page.Locks), len(names)-i-1)
				}
			}
		}
	})
}

func make512() []byte {
	b := make([]byte, transport.MaxName)
	for i := range b {
		b[i] = 'n'
	}
	return b
}

func TestAPILocksPages(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for i := range 7 {
			a.MustPost(0, 200, "/v1/acquire", fmt.Sprintf(`{"name":"p/%d","owner":"me","ttl_ms":3600000}`, i))
		}
		a.MustPost(0, 200, "/v1/acquire", `{"locks":[{"name":"q","mode":"shared"}],"owner":"me","ttl_ms":3600000}`)
		w := a.MustPost(0, 201, "/v1/session", `{"owner":"w","ttl_ms":3600000}`).Field("session").(string)
		a.MustPost(0, 202, "/v1/acquire", `{"locks":[{"name":"p/3"},{"name":"r"}],"session":"`+w+`","request":1,"wait_ms":10}`)
		for node := range a.Size() {
			for _, c := range []struct {
				query string
				names []string
				next  string
			}{
				{"", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q", "r"}, ""},
				{"?limit=9", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q", "r"}, ""},
				{"?limit=1000&prefix=", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q", "r"}, ""},
				{"?limit=3", []string{"p/0", "p/1", "p/2"}, "p/2"},
				{"?limit=3&after=p/2", []string{"p/3", "p/4", "p/5"}, "p/5"},
				{"?limit=3&after=p/5", []string{"p/6", "q", "r"}, ""},
				{"?after=r", nil, ""},
				{"?after=p", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q", "r"}, ""},
				{"?after=p/55", []string{"p/6", "q", "r"}, ""},
				{"?prefix=p/", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6"}, ""},
				{"?prefix=p/&limit=7", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6"}, ""},
				{"?prefix=p/&after=p/4&limit=1", []string{"p/5"}, "p/5"},
				{"?prefix=p/&after=q", nil, ""},
				{"?prefix=p/&after=a", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6"}, ""},
				{"?prefix=P", nil, ""},
				{"?prefix=q", []string{"q"}, ""},
				{"?held=true", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q"}, ""},
				{"?held=false", []string{"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "q", "r"}, ""},
				{"?waiting=true", []string{"p/3", "r"}, ""},
				{"?held=true&waiting=true", []string{"p/3"}, ""},
				{"?waiting=true&limit=1", []string{"p/3"}, "p/3"},
				{"?consistency=stale&prefix=q", []string{"q"}, ""},
			} {
				var page transport.LocksResponse
				a.MustGet(node, "/v1/locks"+c.query).Into(t, &page)
				var names []string
				for _, l := range page.Locks {
					names = append(names, l.Name)
				}
				if !slices.Equal(names, c.names) || page.Next != c.next {
					t.Errorf("%s from %s: %q and next %q, want %q and %q", c.query, a.Name(node), names, page.Next, c.names, c.next)
				}
			}
			a.step(node, step{"GET /v1/locks?prefix=q", ``, nil, 200, `{"locks":[{"name":"q","mode":"shared","held_ms":"<number>","queue_length":0,"holders":[
				{"owner":"me","mode":"shared","token":"<token>","held_ms":"<number>","remaining_ms":"<number>","session":"<short>"}]}]}`})
			a.step(node, step{"GET /v1/locks?prefix=r", ``, nil, 200, `{"locks":[{"name":"r","holders":[],"queue_length":1,"held_ms":0}]}`})
			a.step(node, step{"GET /v1/locks?prefix=p/3", ``, nil, 200, `{"locks":[{"name":"p/3","mode":"exclusive","held_ms":"<number>","queue_length":1,"holders":[
				{"owner":"me","mode":"exclusive","token":"<token>","held_ms":"<number>","remaining_ms":"<number>","session":"<short>"}]}]}`})
		}
	})
}

func TestAPISessionsPages(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for i := range 5 {
			a.MustPost(i%3, 201, "/v1/session", fmt.Sprintf(`{"owner":"o%d","ttl_ms":3600000}`, i%2))
		}
		for node := range a.Size() {
			var ids []string
			next := ""
			for pages := 1; ; pages++ {
				var page transport.SessionsResponse
				a.MustGet(node, "/v1/sessions?limit=2&after="+next).Into(t, &page)
				for _, s := range page.Sessions {
					ids = append(ids, s.ID)
				}
				if next = page.Next; next == "" {
					if pages != 3 {
						t.Errorf("%d pages, want 3", pages)
					}
					break
				}
			}
			if slices.Sort(ids); len(slices.Compact(ids)) != 5 {
				t.Errorf("sessions %q, want 5 different", ids)
			}
			a.settled() // a stale read may be older
			for query, want := range map[string]int{"?owner=o0": 3, "?owner=o1": 2, "?owner=o": 0, "?limit=5": 5, "?limit=1000&consistency=stale": 5} {
				var page transport.SessionsResponse
				a.MustGet(node, "/v1/sessions"+query).Into(t, &page)
				if len(page.Sessions) != want || page.Next != "" {
					t.Errorf("%s: %d sessions and next %q, want %d", query, len(page.Sessions), page.Next, want)
				}
			}
			a.step(node, step{"GET /v1/sessions?limit=1", ``, nil, 200,
				`{"sessions":[{"id":"<short>","owner":"o0","ttl_ms":3600000,"remaining_ms":"<number>","holds":0,"waits":0}],"next":"<text>"}`})
		}
	})
}

// The answer to a read shows everything that was answered before, whichever node it is asked of (R15).
func TestAPIReadsSeeWhatWasAnswered(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for i := range 30 {
			grant := a.MustPost(i%3, 200, "/v1/acquire", `{"name":"a","owner":"me"}`)
			read := a.MustGet((i/3)%3, "/v1/lock?name=a")
			var lock transport.LockResponse
			if read.Into(t, &lock); len(lock.Holders) != 1 || float64(lock.Holders[0].Token) != grant.Field("token") {
				t.Errorf("round %d: %s after %s", i, read.Body, grant.Body)
			}
			if number(read.Header.Get("Pawl-Index")) < number(grant.Header.Get("Pawl-Index")) {
				t.Errorf("round %d: index %s after %s", i, read.Header.Get("Pawl-Index"), grant.Header.Get("Pawl-Index"))
			}
			a.MustPost((i+1)%3, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, grant.Field("session"), lock.Holders[0].Token))
		}
	})
}
