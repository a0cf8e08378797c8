package server_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// What each call costs, in log entries, through every node (R8, "Waiting").
func TestAPICosts(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome() // "n" exclusive, "m" shared with a limit
		post := func(node, status int, path, body string, header ...string) pawltest.Answer {
			t.Helper()
			return a.MustPost(node, status, path, body, header...)
		}
		for node := range a.Size() {
			key := []string{"Idempotency-Key", a.Name(node)}
			a.costs(0, "a refused try without number or key", func() {
				post(node, 409, "/v1/acquire", `{"name":"n","owner":"o"}`)
				post(node, 409, "/v1/acquire", `{"name":"m","owner":"o"}`)
				post(node, 409, "/v1/acquire", `{"locks":[{"name":"free"},{"name":"n"}],"owner":"o"}`)
			})
			a.costs(0, "reads", func() {
				for _, path := range []string{"/v1/lock?name=n", "/v1/lock?name=free", "/v1/locks", "/v1/sessions", "/v1/cluster", "/livez"} {
					a.MustGet(node, path)
					a.MustGet(node, path+map[bool]string{true: "&", false: "?"}[path[len(path)-1] == 'n' || path[len(path)-1] == 'e']+"consistency=stale")
				}
			})
			a.costs(0, "calls of a session that never was", func() {
				const id = `{"session":"00112233445566778899aabbccddeeff"`
				post(node, 410, "/v1/renew", id+`}`)
				post(node, 410, "/v1/release", id+`,"token":1}`)
				post(node, 410, "/v1/cancel", id+`,"request":1}`)
				post(node, 410, "/v1/session/close", id+`}`)
				post(node, 410, "/v1/acquire", id+`,"request":1,"name":"n"}`)
			})
			a.costs(2, "an acquire and its release", func() {
				post(node, 200, "/v1/release", released(post(node, 200, "/v1/acquire", `{"name":"x","owner":"o"}`)))
			})
			a.costs(1, "a refused try with a key", func() { post(node, 409, "/v1/acquire", `{"name":"n","owner":"o"}`, key...) })
			var session string
			a.costs(1, "a session", func() {
				session = post(node, 201, "/v1/session", `{"owner":"o","ttl_ms":86400000}`).Field("session").(string)
			})
			numbered := func(number int, more string) string {
				return fmt.Sprintf(`{"session":%q,"request":%d%s}`, session, number, more)
			}
			a.costs(1, "a refused try with a number", func() { post(node, 409, "/v1/acquire", numbered(1, `,"name":"n"`)) })
			if a := post(node, 409, "/v1/acquire", numbered(1, `,"name":"n"`)); a.Field("code") != "finished" {
				t.Errorf("the number of a refused try: %s", a.Body)
			}
			a.costs(1, "a cancel before its acquire", func() { post(node, 200, "/v1/cancel", numbered(2, "")) })
			if a := post(node, 409, "/v1/acquire", numbered(2, `,"name":"y"`)); a.Field("code") != "finished" {
				t.Errorf("an acquire after its cancel: %s", a.Body)
			}
			a.costs(1, "a renewal", func() { post(node, 200, "/v1/renew", fmt.Sprintf(`{"session":%q}`, session)) })
			post(node, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, session))
		}
	})
}

// released is the body that releases a grant of one lock.
func released(grant pawltest.Answer) string {
	return fmt.Sprintf(`{"session":%q,"token":%d}`, grant.Field("session"), int64(grant.Field("token").(float64)))
}

// A queued acquire costs its entry; that it is granted later is part of somebody else's.
func TestAPILaterGrantCostsNothing(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			first := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"0","ttl_ms":86400000}`)
			const waiters = 10
			grants := make(chan pawltest.Answer, waiters)
			a.costs(waiters, "ten queued acquires", func() {
				for i := range waiters {
					go func() {
						answer, err := a.Post(context.Background(), (node+i)%a.Size(), "/v1/acquire", `{"name":"a","owner":"w","ttl_ms":86400000,"wait_ms":30000}`)
						if err != nil || answer.Status != 200 {
							t.Errorf("waiter: %v %d %s", err, answer.Status, answer.Body)
						}
						grants <- answer
					}()
					a.queued("a", i+1)
				}
			})
			a.costs(waiters+1, "as many releases, each of which grants the next", func() {
				token := 0.0
				for i := range waiters + 1 {
					if i > 0 {
						first = <-grants
					}
					if first.Field("token").(float64) <= token {
						t.Errorf("token %v after %v", first.Field("token"), token)
					}
					token = first.Field("token").(float64)
					a.MustPost(node, 200, "/v1/release", released(first))
				}
			})
		}
	})
}

// queued waits until so many requests stand in the queue of a lock.
func (a *api) queued(lock string, want int) {
	a.t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var got transport.LockResponse
		a.MustGet(0, "/v1/lock?name="+lock).Into(a.t, &got)
		if len(got.Queue) == want {
			return
		}
	}
	a.t.Fatalf("never %d in the queue of %s", want, lock)
}

// Two callers that wait for one request are both answered with its grant, and it is one place in the queue.
func TestAPITwoCallersOfOneRequest(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			for _, kind := range []string{"number", "key"} {
				holder := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"h","ttl_ms":60000}`)
				body, header := `{"name":"a","owner":"w","ttl_ms":60000,"wait_ms":20000}`, []string{"Idempotency-Key", kind + a.Name(node)}
				if kind == "number" {
					session := a.MustPost(node, 201, "/v1/session", `{"owner":"w","ttl_ms":60000}`).Field("session")
					body, header = fmt.Sprintf(`{"name":"a","session":%q,"request":1,"wait_ms":20000}`, session), nil
				}
				grants := make(chan pawltest.Answer, 2)
				for i := range 2 {
					go func() {
						answer, err := a.Post(context.Background(), (node+i)%a.Size(), "/v1/acquire", body, header...)
						if err != nil {
							t.Error(err)
						}
						grants <- answer
					}()
				}
				time.Sleep(time.Second) // both have asked: the second is no second place
				a.queued("a", 1)
				a.MustPost(node, 200, "/v1/release", released(holder))
				one, other := <-grants, <-grants
				if one.Status != 200 || other.Status != 200 || one.Field("token") != other.Field("token") || one.Field("session") != other.Field("session") ||
					one.Field("replayed") == other.Field("replayed") {
					t.Fatalf("%s: answers %d %s and %d %s", kind, one.Status, one.Body, other.Status, other.Body)
				}
				if kind == "number" {
					a.MustPost(node, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"request":1}`, one.Field("session")))
					a.MustPost(node, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, one.Field("session")))
				} else {
					a.MustPost(node, 200, "/v1/release", released(one))
				}
			}
		}
	})
}

// A28: two requests of one session for the same lock are two: the second waits for the first.
func TestAPISecondRequestOfASessionWaits(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			session := a.MustPost(node, 201, "/v1/session", `{"owner":"s","ttl_ms":60000}`).Field("session").(string)
			numbered := func(number int, more string) string {
				return fmt.Sprintf(`{"session":%q,"request":%d%s}`, session, number, more)
			}
			first := a.MustPost(node, 200, "/v1/acquire", numbered(1, `,"name":"x"`))
			second := make(chan pawltest.Answer, 1)
			go func() {
				answer, err := a.Post(context.Background(), (node+1)%a.Size(), "/v1/acquire", numbered(2, `,"name":"x","wait_ms":20000`))
				if err != nil {
					t.Error(err)
				}
				second <- answer
			}()
			a.queued("x", 1)
			select {
			case answer := <-second:
				t.Errorf("both hold it: %s and %s", first.Body, answer.Body)
			default:
			}
			// A late duplicate of the first one's release must not touch the second's hold.
			a.MustPost(node, 200, "/v1/release", numbered(1, ""))
			answer := <-second
			if answer.Status != 200 || answer.Field("token").(float64) <= first.Field("token").(float64) {
				t.Errorf("second: %d %s", answer.Status, answer.Body)
			}
			for _, body := range []string{numbered(1, ""), numbered(1, fmt.Sprintf(`,"token":%v`, first.Field("token"))), numbered(2, fmt.Sprintf(`,"token":%v`, first.Field("token"))),
				fmt.Sprintf(`{"session":%q,"token":%v}`, session, first.Field("token")), fmt.Sprintf(`{"session":%q,"token":%v}`, session, answer.Field("token"))} {
				a.step(node, step{"POST /v1/release", body, nil, 410, `{"code":"not_held"}`})
			}
			var lock transport.LockResponse
			if a.MustGet(node, "/v1/lock?name=x").Into(t, &lock); len(lock.Holders) != 1 || float64(lock.Holders[0].Token) != answer.Field("token") {
				t.Errorf("after late releases: %+v", lock)
			}
			a.MustPost(node, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, session))
		}
	})
}

// leave starts a call at a node and has its caller go away once it waits.
func (a *api) leave(node int, lock, body string, header ...string) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	client := a.ClientAt("leaver")
	defer client.CloseIdleConnections()
	go func() {
		_, err := a.Do(ctx, client, http.MethodPost, a.URL(node)+"/v1/acquire", body, header...)
		gone <- err
	}()
	a.queued(lock, 1)
	cancel()
	if err := <-gone; err == nil {
		a.t.Error("it was answered")
	}
	synctest.Wait()
}

// A caller that can never learn of its grant leaves the queue when it goes away, through a follower as well; one that can
// ask again keeps its place, because its repeat may be under way already.
func TestAPICallerGoesAway(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			holder := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"h","ttl_ms":120000}`)
			a.leave(node, "a", `{"name":"a","owner":"w","wait_ms":60000}`)
			began := time.Now()
			a.queued("a", 0)
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("through %s the place was kept for %v", a.Name(node), took)
			}

			session := a.MustPost(node, 201, "/v1/session", `{"owner":"w","ttl_ms":120000}`).Field("session")
			numbered := fmt.Sprintf(`{"name":"a","session":%q,"request":1,"wait_ms":20000}`, session)
			a.leave(node, "a", numbered)
			time.Sleep(5 * time.Second)
			a.queued("a", 1)
			keyed, key := `{"name":"a","owner":"k","wait_ms":20000}`, []string{"Idempotency-Key", "go" + a.Name(node)}
			later := make(chan pawltest.Answer, 1)
			go func() { // in front of the repeat, were its place not kept
				answer, _ := a.Post(context.Background(), 0, "/v1/acquire", keyed, key...)
				later <- answer
			}()
			a.queued("a", 2)
			a.MustPost(0, 200, "/v1/release", released(holder))
			grant := a.MustPost((node+1)%3, 200, "/v1/acquire", numbered)
			if grant.Field("replayed") != true {
				t.Errorf("the repeat is answered %s", grant.Body)
			}
			a.MustPost(0, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, session))
			a.MustPost(0, 200, "/v1/release", released(<-later))

			holder = a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"h","ttl_ms":120000}`)
			key = []string{"Idempotency-Key", "kept" + a.Name(node)}
			a.leave(node, "a", keyed, key...)
			time.Sleep(5 * time.Second)
			a.queued("a", 1)
			a.MustPost(0, 200, "/v1/release", released(holder))
			a.MustPost(0, 200, "/v1/release", released(a.MustPost((node+2)%3, 200, "/v1/acquire", keyed, key...)))
		}
	})
}

// The end of wait_ms: a numbered request is told its place and goes on from there; any other is told who holds the lock.
func TestAPIEndOfAWait(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/acquire", `{"name":"a","owner":"h","ttl_ms":600000}`, nil, 200,
				`{"granted":true,"session":"<session:h>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":600000,"lease_ms":600000,"owner":"h","replayed":false}`},
			{"POST /v1/session", `{"owner":"1","ttl_ms":600000}`, nil, 201, `{"session":"<session:s1>","ttl_ms":600000}`},
			{"POST /v1/session", `{"owner":"2","ttl_ms":600000}`, nil, 201, `{"session":"<session:s2>","ttl_ms":600000}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s1}","request":1,"wait_ms":1000}`, nil, 202, `{"granted":false,"request":1,"queue":[{"name":"a","position":1}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s2}","request":1,"wait_ms":1}`, nil, 202, `{"granted":false,"request":1,"queue":[{"name":"a","position":2}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s1}","request":1,"wait_ms":5000}`, nil, 202, `{"granted":false,"request":1,"queue":[{"name":"a","position":1}]}`},
			{"POST /v1/acquire", `{"name":"a","owner":"3","wait_ms":2000}`, nil, 409, `{"code":"held","queue_length":2,"holders":[
				{"owner":"h","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${h.short}"}]}`},
			{"POST /v1/release", `{"session":"${h}","token":${t}}`, nil, 200, releasedA},
			{"POST /v1/acquire", `{"name":"a","session":"${s2}","request":1,"wait_ms":1}`, nil, 202, `{"granted":false,"request":1,"queue":[{"name":"a","position":1}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s1}","request":1,"wait_ms":1}`, nil, 200,
				`{"granted":true,"session":"${s1}","token":"<token>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":600000,"lease_ms":"<number>","owner":"1","request":1,"replayed":true}`},
			{"POST /v1/release", `{"session":"${s1}","request":1}`, nil, 200, releasedA},
			{"POST /v1/cancel", `{"session":"${s2}","request":1}`, nil, 200, `{"state":"released"}`},
			{"POST /v1/session/close", `{"session":"${s1}"}`, nil, 200, `{"released":0}`},
			{"POST /v1/session/close", `{"session":"${s2}"}`, nil, 200, `{"released":0}`},
		})
	})
}

// The end of a keyed call's time must not end the wait of its repeat.
func TestAPIEndOfAKeyedWaitWithARepeat(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			holder := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"h","ttl_ms":120000}`)
			key := []string{"Idempotency-Key", a.Name(node)}
			repeat := make(chan pawltest.Answer, 1)
			go func() {
				time.Sleep(time.Second)
				answer, _ := a.Post(context.Background(), (node+1)%a.Size(), "/v1/acquire", `{"name":"a","owner":"w","wait_ms":20000}`, key...)
				repeat <- answer
			}()
			a.step(node, step{"POST /v1/acquire", `{"name":"a","owner":"w","wait_ms":3000}`, key, 504, `{"code":"unknown_outcome"}`})
			a.queued("a", 1)
			a.MustPost(0, 200, "/v1/release", released(holder))
			a.MustPost(0, 200, "/v1/release", released(<-repeat))
		}
	})
}
