package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// Calls that change, judge or end a hold, each through every node.

const openS = `{"session":"<session:s>","ttl_ms":60000}`

// ofS is the pattern of a grant of one lock in the session s, whose token is captured.
func ofS(number int, token, mode, more string) string {
	return fmt.Sprintf(`{"granted":true,"session":"${s}","token":"<token:%s>","locks":[{"name":"a","mode":%q,"token":"<token>"%s}],"ttl_ms":60000,"lease_ms":"<number>","owner":"me","request":%d,"replayed":false}`,
		token, mode, more, number)
}

func TestAPIConvert(t *testing.T) {
	convert := func(session string, number, of int, token, mode, more string) string {
		return fmt.Sprintf(`{"session":"${%s}","request":%d,"of":%d,"token":${%s},"name":"a","mode":%q%s}`, session, number, of, token, mode, more)
	}
	call := func(body string, status int, want string) step {
		return step{"POST /v1/convert", body, nil, status, want}
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS},
			{"POST /v1/session", `{"owner":"you","ttl_ms":60000}`, nil, 201, `{"session":"<session:u>","ttl_ms":60000}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"max_hold_ms":50000}`, nil, 200,
				`{"granted":true,"session":"${s}","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":50000,"owner":"me","request":1,"replayed":false}`},
			call(convert("s", 2, 1, "t", "exclusive", ""), 400, `{"code":"invalid","field":"mode"}`),
			call(convert("s", 2, 1, "t", "shared", ""), 409, `{"code":"finished"}`), // the refusal has used the number up
			call(convert("s", 3, 9, "t", "shared", ""), 410, `{"code":"not_held"}`),
			call(convert("u", 3, 1, "t", "shared", ""), 410, `{"code":"not_held"}`),
			// Exclusive to shared at once, with a new token and the old end.
			call(convert("s", 4, 1, "t", "shared", `,"limit":2`), 200,
				`{"granted":true,"session":"${s}","token":"<token:t2>","locks":[{"name":"a","mode":"shared","token":"<token>","limit":2}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":"<number:left>","owner":"me","request":4,"replayed":false}`),
			call(convert("s", 4, 1, "t", "shared", `,"limit":2`), 200,
				`{"granted":true,"session":"${s}","token":${t2},"locks":[{"name":"a","mode":"shared","token":${t2},"limit":2}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":"<number>","owner":"me","request":4,"replayed":true}`),
			call(convert("s", 4, 1, "t", "shared", `,"limit":3`), 409, `{"code":"request_mismatch"}`),
			call(convert("s", 5, 1, "t", "exclusive", ""), 410, `{"code":"not_held"}`), // the token of before
			{"POST /v1/acquire", `{"name":"a","mode":"shared","limit":2,"session":"${u}","request":1}`, nil, 200,
				`{"granted":true,"session":"${u}","token":${t2},"locks":[{"name":"a","mode":"shared","token":${t2},"limit":2}],"ttl_ms":60000,"lease_ms":"<number>","owner":"you","request":1,"replayed":false}`},
			// Shared to exclusive waits for the other holder; a try does not.
			call(convert("s", 6, 1, "t2", "exclusive", ""), 409, `{"code":"held","queue_length":0,"holders":[
				{"owner":"me","mode":"shared","token":${t2},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"},
				{"owner":"you","mode":"shared","token":${t2},"held_ms":"<number>","remaining_ms":"<number>","session":"${u.short}"}]}`),
			call(convert("s", 7, 1, "t2", "exclusive", `,"wait_ms":5`), 202, `{"granted":false,"request":7,"queue":[{"name":"a","position":1}]}`),
			call(convert("s", 7, 1, "t2", "exclusive", `,"wait_ms":1`), 202, `{"granted":false,"request":7,"queue":[{"name":"a","position":1}]}`),
			// The second of two would wait for the first, and the first for it.
			call(convert("u", 2, 1, "t2", "exclusive", `,"wait_ms":5`), 409, `{"code":"deadlock","cycle":[
				{"task":"","owner":"you","waits_for":"a","held_by":"me"},{"task":"","owner":"me","waits_for":"a","held_by":"you"}]}`),
			{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","mode":"shared","limit":2,"history":"<list>","delay_remaining_ms":0,"holders":[
				{"owner":"me","mode":"shared","token":${t2},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"},
				{"owner":"you","mode":"shared","token":${t2},"held_ms":"<number>","remaining_ms":"<number>","session":"${u.short}"}],
				"queue":[{"owner":"me","mode":"exclusive","priority":0,"waited_ms":"<number>","position":1,"waits_for":["a"],"session":"${s.short}"}]}`},
			{"POST /v1/cancel", `{"session":"${s}","request":7}`, nil, 200, `{"state":"cancelled"}`},
			call(convert("s", 8, 1, "t2", "exclusive", `,"wait_ms":5`), 202, `{"granted":false,"request":8,"queue":[{"name":"a","position":1}]}`),
			{"POST /v1/release", `{"session":"${u}","request":1}`, nil, 200, releasedA},
			call(convert("s", 8, 1, "t2", "exclusive", `,"wait_ms":5`), 200,
				`{"granted":true,"session":"${s}","token":"<token:t3>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":"<number>","owner":"me","request":8,"replayed":true}`),
			{"POST /v1/check", `{"name":"a","token":${t3}}`, nil, 200, `{"valid":true,"owner":"me","mode":"exclusive","remaining_ms":"<number>"}`},
			{"POST /v1/release", `{"session":"${s}","request":1}`, nil, 200, releasedA},
			call(convert("s", 9, 1, "t3", "shared", ""), 410, `{"code":"not_held"}`),
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":0}`},
			call(convert("s", 10, 1, "t3", "shared", ""), 410, `{"code":"session_gone"}`),
			{"POST /v1/session/close", `{"session":"${u}"}`, nil, 200, `{"released":0}`},
			// A lock that others limit takes no other limit.
			{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS},
			{"POST /v1/acquire", `{"name":"a","mode":"shared","session":"${s}","request":1}`, nil, 200, ofS(1, "t", "shared", "")},
			{"POST /v1/acquire", `{"name":"a","owner":"you","mode":"shared","limit":9,"ttl_ms":60000}`, nil, 200,
				`{"granted":true,"session":"<session:o>","token":${t},"locks":[{"name":"a","mode":"shared","token":${t},"limit":9}],"ttl_ms":60000,"lease_ms":60000,"owner":"you","replayed":false}`},
			// The session of a single acquire takes no conversions.
			call(convert("o", 2, 1, "t", "exclusive", ""), 400, `{"code":"invalid","field":"session"}`),
			{"POST /v1/release", `{"session":"${o}","token":${t}}`, nil, 200, releasedA},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":1}`},
		})
	})
}

func TestAPICheck(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/check", `{"name":"a","token":9007199254740991}`, nil, 412, `{"code":"stale_token"}`},
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA},
			{"POST /v1/check", `{"name":"a","token":"${t}"}`, nil, 200, `{"valid":true,"owner":"me","mode":"exclusive","remaining_ms":"<number>"}`},
			{"POST /v1/check", `{"name":"b","token":${t}}`, nil, 412, `{"code":"stale_token"}`},
			{"POST /v1/check", `{"name":"a","token":1}`, nil, 412, `{"code":"stale_token","newest":${t}}`},
			{"POST /v1/check", `{"name":"a","token":9007199254740991}`, nil, 412, `{"code":"stale_token","newest":${t}}`},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA},
			{"POST /v1/check", `{"name":"a","token":${t}}`, nil, 412, `{"code":"stale_token"}`},
			{"POST /v1/acquire", `{"name":"a","owner":"you","mode":"shared","ttl_ms":30000}`, nil, 200,
				`{"granted":true,"session":"<session:s2>","token":"<token:t2>","locks":[{"name":"a","mode":"shared","token":"<token>"}],"ttl_ms":30000,"lease_ms":30000,"owner":"you","replayed":false}`},
			{"POST /v1/check", `{"name":"a","token":${t}}`, nil, 412, `{"code":"stale_token","newest":${t2}}`},
			{"POST /v1/check", `{"name":"a","token":${t2}}`, nil, 200, `{"valid":true,"owner":"you","mode":"shared","remaining_ms":"<number>"}`},
			{"POST /v1/release", `{"session":"${s2}","token":${t2}}`, nil, 200, releasedA},
		})
		a.holdSome()
		for node := range a.Size() {
			a.costs(0, "checks", func() {
				a.MustPost(node, 412, "/v1/check", `{"name":"n","token":1}`)
				a.MustPost(node, 412, "/v1/check", `{"name":"free","token":1}`)
			})
		}
	})
}

func TestAPIValue(t *testing.T) {
	holder := func(value string) string {
		return `{"owner":"me","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"` + value + `}`
	}
	lock := func(value string) string {
		return `{"name":"a","mode":"exclusive","queue":[],"history":"<list>","delay_remaining_ms":0,"holders":[` + holder(value) + `]}`
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000,"value":"first\n\u001b"}`, nil, 200, exclusiveA},
			{"GET /v1/lock?name=a", ``, nil, 200, lock(`,"value":"first\n\u001b"`)},
			{"POST /v1/acquire", `{"name":"a","owner":"you"}`, nil, 409, `{"code":"held","queue_length":0,"holders":[` + holder(`,"value":"first\n\u001b"`) + `]}`},
			{"POST /v1/value", `{"session":"${s}","token":1,"name":"a","value":"x"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/value", `{"session":"${s}","token":${t},"name":"b","value":"x"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/value", `{"session":"${s}","token":${t},"request":1,"name":"a","value":"x"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/value", `{"session":"${s}","token":${t},"name":"a","value":"second"}`, nil, 200, `{}`},
			{"GET /v1/lock?name=a", ``, nil, 200, lock(`,"value":"second"`)},
			{"POST /v1/value", `{"session":"${s}","token":${t},"name":"a","value":""}`, nil, 200, `{}`},
			{"GET /v1/lock?name=a", ``, nil, 200, lock("")},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA},
			{"POST /v1/value", `{"session":"${s}","token":${t},"name":"a","value":"late"}`, nil, 410, `{"code":"session_gone"}`},
		})
	})
}

// Whoever was forced out learns at its next renew by whom and why, until it shows that it knows; its release finds nothing.
func TestAPIForceRelease(t *testing.T) {
	const lost = `[{"name":"a","token":${t},"reason":"stuck","by":"operator at caller"}]`
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/force-release", `{"name":"a","token":1,"reason":"r"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"lock_delay_ms":2}`, nil, 200, ofS(1, "t", "exclusive", "")},
			{"POST /v1/force-release", `{"name":"a","token":1,"reason":"r"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/force-release", `{"name":"b","token":${t},"reason":"r"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/force-release", `{"name":"a","token":${t},"reason":"stuck"}`, nil, 200, `{"released":1}`},
			{"POST /v1/force-release", `{"name":"a","token":${t},"reason":"stuck"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","request":1}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/renew", `{"session":"${s}"}`, nil, 200, `{"session":"${s}","ttl_ms":60000,"lease_ms":60000,"holds":0,"lost":` + lost + `}`},
			{"POST /v1/renew", `{"session":"${s}","done":1}`, nil, 200, `{"session":"${s}","ttl_ms":60000,"lease_ms":60000,"holds":0,"lost":` + lost + `}`},
			{"POST /v1/renew", `{"session":"${s}","done":2}`, nil, 200, `{"session":"${s}","ttl_ms":60000,"lease_ms":60000,"holds":0,"lost":[]}`},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":0}`},
			// A session of its own stays for what it would have lasted, to tell so.
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000,"wait_ms":1000}`, nil, 200,
				`{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":30000,"lease_ms":"<number>","owner":"me","replayed":false}`},
			{"POST /v1/force-release", `{"name":"a","token":"${t}","reason":"stuck"}`, nil, 200, `{"released":1}`},
			{"POST /v1/renew", `{"session":"${s}"}`, nil, 200, `{"session":"${s}","ttl_ms":30000,"lease_ms":"<number>","holds":0,"lost":` + lost + `}`},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 410, `{"code":"not_held"}`},
		})
	})
}

// A lock that very many share is freed by one call, though not by one entry.
func TestAPIForceReleaseOfManyHolders(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		const holders = 2500
		session := a.MustPost(0, 201, "/v1/session", `{"owner":"me","ttl_ms":86400000}`).Field("session").(string)
		acquire := func(i int) pawltest.Answer {
			answer, err := a.Post(context.Background(), i%a.Size(), "/v1/acquire", fmt.Sprintf(`{"name":"a","mode":"shared","session":%q,"request":%d}`, session, i+1))
			if err != nil || answer.Status != 200 {
				t.Errorf("holder %d: %v %d %s", i, err, answer.Status, answer.Body)
			}
			return answer
		}
		token := int64(acquire(0).Field("token").(float64))
		var asking sync.WaitGroup
		for worker := range 100 {
			asking.Go(func() {
				for i := 1 + worker; i < holders; i += 100 {
					acquire(i)
				}
			})
		}
		asking.Wait()
		a.MustPost(0, 200, "/v1/check", fmt.Sprintf(`{"name":"a","token":%d}`, token))
		a.costs(3, "freeing a lock of many holders", func() {
			answer := a.MustPost(a.followerOf(), 200, "/v1/force-release", fmt.Sprintf(`{"name":"a","token":%d,"reason":"r"}`, token))
			if n := answer.Field("released"); n != float64(holders) {
				t.Errorf("released %v of %d", n, holders)
			}
		})
		a.MustPost(0, 412, "/v1/check", fmt.Sprintf(`{"name":"a","token":%d}`, token))
	})
}

// What the calls cost, in log entries, through every node.
func TestAPIHoldCosts(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		for node := range a.Size() {
			session := a.MustPost(node, 201, "/v1/session", `{"owner":"me","ttl_ms":86400000}`).Field("session").(string)
			token := 0.0
			request := func(status int, path, format string, args ...any) {
				t.Helper()
				answer := a.MustPost(node, status, path, fmt.Sprintf(`{"session":%q,"name":"a",`, session)+fmt.Sprintf(format, args...)+"}")
				if got, ok := answer.Field("token").(float64); ok {
					token = got
				}
			}
			a.costs(1, "a hold with everything", func() {
				request(200, "/v1/acquire", `"request":1,"max_hold_ms":86400000,"lock_delay_ms":1000,"value":"v","priority":5,"task":"t"`)
			})
			a.costs(1, "a value", func() { request(200, "/v1/value", `"request":1,"token":%d,"value":"w"`, int64(token)) })
			a.costs(1, "a conversion to shared", func() { request(200, "/v1/convert", `"request":2,"of":1,"token":%d,"mode":"shared"`, int64(token)) })
			a.costs(1, "a conversion to exclusive", func() { request(200, "/v1/convert", `"request":3,"of":1,"token":%d,"mode":"exclusive"`, int64(token)) })
			a.costs(1, "a forced release", func() {
				a.MustPost(node, 200, "/v1/force-release", fmt.Sprintf(`{"name":"a","token":%d,"reason":"r"}`, int64(token)))
			})
			a.MustPost(node, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, session))
			time.Sleep(2 * time.Second)
		}
	})
}

// followerOf is a node that does not lead.
func (a *api) followerOf() int { return (a.Leader() + 1) % a.Size() }

func TestAPILockDelay(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		const delayed = `{"code":"delayed","retry_after_ms":"<number:retry>"}`
		for node := range a.Size() {
			for _, s := range []step{
				{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS},
				{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"lock_delay_ms":1000}`, nil, 200, ofS(1, "t", "exclusive", "")},
				{"POST /v1/release", `{"session":"${s}","request":1}`, nil, 200, releasedA},
				{"POST /v1/acquire", `{"name":"a","session":"${s}","request":2,"lock_delay_ms":1000}`, nil, 200, ofS(2, "t", "exclusive", "")},
				{"POST /v1/force-release", `{"name":"a","token":${t},"reason":"r","lock_delay_ms":5000}`, nil, 200, `{"released":1}`},
				{"POST /v1/acquire", `{"name":"a","owner":"o","ttl_ms":60000}`, nil, 409, delayed},
				{"POST /v1/acquire", `{"name":"a","owner":"o","ttl_ms":60000,"mode":"shared"}`, []string{"Idempotency-Key", "k" + a.Name(node)}, 409, delayed},
				{"POST /v1/acquire", `{"name":"a","session":"${s}","request":3}`, nil, 409, delayed},
				{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","holders":[],"queue":[],"history":"<list>","delay_remaining_ms":"<number:left>"}`},
			} {
				a.step(node, s)
			}
			if left := number(a.vars["left"]); left < 4900 || left > 5001 || number(a.vars["retry"]) < left {
				t.Errorf("%d ms are left of 5000, and before that retry_after_ms was %s", left, a.vars["retry"])
			}
			began := time.Now()
			a.costs(0, "a refused try in a lock-delay", func() { a.MustPost(node, 409, "/v1/acquire", `{"name":"a","owner":"o"}`) })
			a.step(node, step{"POST /v1/acquire", `{"name":"a","session":"${s}","request":4,"wait_ms":20000}`, nil, 200, ofS(4, "t", "exclusive", "")})
			if waited := time.Since(began).Milliseconds(); waited < number(a.vars["left"])-10 || waited > number(a.vars["left"])+50 {
				t.Errorf("granted after %d ms, where %s ms were left", waited, a.vars["left"])
			}
			a.step(node, step{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":1}`})
		}
	})
}

// R7: the task that would wait for itself through others is refused, and told how.
func TestAPIDeadlock(t *testing.T) {
	grant := func(session, name string, request int) string {
		return fmt.Sprintf(`{"granted":true,"session":"${%s}","token":"<token>","locks":[{"name":%q,"mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":"<number>","owner":"<text>","request":%d,"replayed":false}`,
			session, name, request)
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS},
			{"POST /v1/session", `{"owner":"you","ttl_ms":60000}`, nil, 201, `{"session":"<session:u>","ttl_ms":60000}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"task":"mine"}`, nil, 200, grant("s", "a", 1)},
			{"POST /v1/acquire", `{"name":"b","session":"${u}","request":1,"task":"yours"}`, nil, 200, grant("u", "b", 1)},
			{"POST /v1/acquire", `{"name":"b","session":"${s}","request":2,"task":"mine","wait_ms":1}`, nil, 202, `{"granted":false,"request":2,"queue":[{"name":"b","position":1}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${u}","request":2,"task":"yours","wait_ms":1000}`, nil, 409, `{"code":"deadlock","cycle":[
				{"task":"yours","owner":"you","waits_for":"a","held_by":"me"},{"task":"mine","owner":"me","waits_for":"b","held_by":"you"}]}`},
			// Nobody waits in vain: without a task nothing is known, and a try is no wait.
			{"POST /v1/acquire", `{"name":"a","session":"${u}","request":3,"wait_ms":1}`, nil, 202, `{"granted":false,"request":3,"queue":[{"name":"a","position":1}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":3,"task":"mine","wait_ms":1}`, nil, 409, `{"code":"deadlock","cycle":[
				{"task":"mine","owner":"me","waits_for":"a","held_by":"me"}]}`},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":1}`},
			{"POST /v1/session/close", `{"session":"${u}"}`, nil, 200, `{"released":2}`},
		})
	})
}

func TestAPIPriorityAndLabels(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		waiter := func(request int, priority, position string) step {
			return step{"POST /v1/acquire", fmt.Sprintf(`{"name":"a","session":"${w}","request":%d,"wait_ms":1,"priority":%s}`, request, priority), nil, 202,
				fmt.Sprintf(`{"granted":false,"request":%d,"queue":[{"name":"a","position":%s}]}`, request, position)}
		}
		queued := func(priority, position int) string {
			return fmt.Sprintf(`{"owner":"w","mode":"exclusive","priority":%d,"waited_ms":"<number>","position":%d,"waits_for":["a"],"session":"${w.short}"}`, priority, position)
		}
		a.tables([]step{
			{"POST /v1/session", `{"owner":"w","ttl_ms":60000,"labels":{"zone":"b","app":"é","empty":""}}`, nil, 201, `{"session":"<session:w>","ttl_ms":60000}`},
			{"GET /v1/sessions?owner=w", ``, nil, 200, `{"sessions":[{"id":"${w.short}","owner":"w","labels":{"app":"é","empty":"","zone":"b"},"ttl_ms":60000,"remaining_ms":"<number>","holds":0,"waits":0}]}`},
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA},
			waiter(1, "0", "1"), waiter(2, "-1000", "2"), waiter(3, "7", "1"), waiter(4, "0", "3"), waiter(5, "1000", "1"),
			{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","mode":"exclusive","history":"<list>","delay_remaining_ms":0,
				"holders":[{"owner":"me","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"}],
				"queue":[` + queued(1000, 1) + "," + queued(7, 2) + "," + queued(0, 3) + "," + queued(0, 4) + "," + queued(-1000, 5) + `]}`},
			// The same number with another priority, maximum or delay is another request.
			{"POST /v1/acquire", `{"name":"a","session":"${w}","request":1,"wait_ms":1,"priority":1}`, nil, 409, `{"code":"request_mismatch"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${w}","request":1,"wait_ms":1,"max_hold_ms":600}`, nil, 409, `{"code":"request_mismatch"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${w}","request":1,"wait_ms":1,"lock_delay_ms":1}`, nil, 409, `{"code":"request_mismatch"}`},
			{"POST /v1/session/close", `{"session":"${w}"}`, nil, 200, `{"released":0}`},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA},
		})
	})
}

func TestAPIMaxHold(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			a.step(node, step{"POST /v1/session", `{"owner":"me","ttl_ms":60000}`, nil, 201, openS})
			a.step(node, step{"POST /v1/acquire", `{"locks":[{"name":"a"},{"name":"b"}],"session":"${s}","request":1,"max_hold_ms":3000}`, nil, 200,
				`{"granted":true,"session":"${s}","locks":[{"name":"a","mode":"exclusive","token":"<token:t>"},{"name":"b","mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":3000,"owner":"me","request":1,"replayed":false}`})
			time.Sleep(time.Second)
			a.step(node, step{"POST /v1/acquire", `{"locks":[{"name":"a"},{"name":"b"}],"session":"${s}","request":1,"max_hold_ms":3000}`, nil, 200,
				`{"granted":true,"session":"${s}","locks":[{"name":"a","mode":"exclusive","token":"<token:t>"},{"name":"b","mode":"exclusive","token":"<token>"}],"ttl_ms":60000,"lease_ms":"<number>","hold_ms":"<number:left>","owner":"me","request":1,"replayed":true}`})
			if left := number(a.vars["left"]); left > 2001 || left < 1900 {
				t.Errorf("hold_ms %d after 1 s of 3", left)
			}
			a.step(node, step{"GET /v1/lock?name=b", ``, nil, 200, `{"name":"b","mode":"exclusive","queue":[],"history":"<list>","delay_remaining_ms":0,"holders":[
				{"owner":"me","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number:left>","session":"${s.short}"}]}`})
			if left := number(a.vars["left"]); left > 2001 {
				t.Errorf("remaining_ms is %d, and the hold ends in 2000", left)
			}
			time.Sleep(2100 * time.Millisecond)
			a.step(node, step{"POST /v1/renew", `{"session":"${s}"}`, nil, 200, `{"session":"${s}","ttl_ms":60000,"lease_ms":60000,"holds":0,"lost":[
				{"name":"a","token":${t},"reason":"max_hold"},{"name":"b","token":${t},"reason":"max_hold"}]}`})
			a.step(node, step{"POST /v1/acquire", `{"locks":[{"name":"a"},{"name":"b"}],"session":"${s}","request":1,"max_hold_ms":3000}`, nil, 409, `{"code":"finished"}`})
			a.step(node, step{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":0}`})
		}
	})
}

// The last eight holders with how each hold ended, the newest first; a node that restarted has forgotten them.
func TestAPIHistory(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		history := func(node int, query string) (words []string) {
			t.Helper()
			var lock transport.LockResponse
			a.MustGet(node, "/v1/lock?name=a"+query).Into(t, &lock)
			for _, h := range lock.History {
				words = append(words, h.Owner+" "+h.Ended)
			}
			return words
		}
		session := func(owner, more string) string {
			return a.MustPost(0, 201, "/v1/session", `{"owner":"`+owner+`"`+more+`}`).Field("session").(string)
		}
		a.step(0, step{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA})
		a.step(0, step{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA})
		closed := session("closed", "")
		a.MustPost(0, 200, "/v1/acquire", `{"name":"a","session":"`+closed+`","request":1}`)
		a.MustPost(0, 200, "/v1/session/close", `{"session":"`+closed+`"}`)
		a.MustPost(0, 200, "/v1/acquire", `{"name":"a","session":"`+session("expired", `,"ttl_ms":500`)+`","request":1}`)
		time.Sleep(600 * time.Millisecond)
		a.MustPost(0, 200, "/v1/acquire", `{"name":"a","session":"`+session("kept", "")+`","request":1,"max_hold_ms":500}`)
		time.Sleep(600 * time.Millisecond)
		forced := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"forced"}`).Field("token")
		a.MustPost(0, 200, "/v1/force-release", fmt.Sprintf(`{"name":"a","token":%v,"reason":"r"}`, forced))
		a.settled()
		want := []string{"forced revoked", "kept max_hold", "expired expired", "closed released", "me released"}
		for node := range a.Size() {
			for _, query := range []string{"", "&consistency=stale"} {
				if got := history(node, query); !slices.Equal(got, want) {
					t.Errorf("%s%s: %q, want %q", a.Name(node), query, got, want)
				}
			}
		}
		for i := range 7 {
			a.step(i%3, step{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA})
			a.step(i%3, step{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA})
		}
		if got := history(0, ""); len(got) != 8 || got[7] != "forced revoked" {
			t.Errorf("after seven more: %q", got)
		}
	})
}

// Other orders than by name are orders among the locks that were looked at.
func TestAPILocksSorted(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		w := a.MustPost(0, 201, "/v1/session", `{"owner":"w","ttl_ms":3600000}`).Field("session").(string)
		request := 0
		for i, name := range []string{"c", "a", "b", "d"} {
			a.MustPost(0, 200, "/v1/acquire", fmt.Sprintf(`{"name":%q,"owner":"me","ttl_ms":3600000}`, name))
			for range i % 3 {
				request++
				a.MustPost(0, 202, "/v1/acquire", fmt.Sprintf(`{"name":%q,"session":%q,"request":%d,"wait_ms":1}`, name, w, request))
			}
			time.Sleep(time.Second)
		}
		for node := range a.Size() {
			for query, want := range map[string][]string{
				"": {"a", "b", "c", "d"}, "?sort=name": {"a", "b", "c", "d"}, "?sort=held": {"c", "a", "b", "d"}, "?sort=queue": {"b", "a", "c", "d"}, "?sort=held&limit=2": {"c", "a"},
				"?sort=queue&waiting=true": {"b", "a"}, "?sort=held&prefix=d": {"d"}, "?sort=held&after=a": {"c", "b", "d"}, "?sort=queue&held=true&limit=1": {"b"},
			} {
				var page transport.LocksResponse
				a.MustGet(node, "/v1/locks"+query).Into(t, &page)
				var names []string
				for _, l := range page.Locks {
					names = append(names, l.Name)
				}
				if !slices.Equal(names, want) || page.Next != "" {
					t.Errorf("%s: %q and next %q, want %q", query, names, page.Next, want)
				}
			}
		}
	})
}

// A list is read in parts, between which entries are applied; nothing is lost at their seams.
func TestAPILocksInParts(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		const requests = 34 // of 64 locks
		var all []string
		for i := range requests {
			var locks []string
			for j := range transport.MaxLocks {
				all = append(all, fmt.Sprintf("z/%02d/%02d", i, j))
				locks = append(locks, fmt.Sprintf(`{"name":%q}`, all[len(all)-1]))
			}
			a.MustPost(i%a.Size(), 200, "/v1/acquire", `{"owner":"me","ttl_ms":3600000,"locks":[`+strings.Join(locks, ",")+`]}`)
			time.Sleep(10 * time.Millisecond)
		}
		w := a.MustPost(0, 201, "/v1/session", `{"owner":"w","ttl_ms":3600000}`).Field("session").(string)
		last := all[len(all)-1]
		a.MustPost(0, 202, "/v1/acquire", fmt.Sprintf(`{"name":%q,"session":%q,"request":1,"wait_ms":1}`, last, w))
		page := func(query string) (names []string, next string) {
			t.Helper()
			var page transport.LocksResponse
			a.MustGet(a.followerOf(), "/v1/locks?limit=1000"+query).Into(t, &page)
			for _, l := range page.Locks {
				names = append(names, l.Name)
			}
			return names, page.Next
		}
		var listed []string
		for next := ""; ; {
			names, after := page("&after=" + escaped(next))
			listed = append(listed, names...)
			if next = after; next == "" {
				break
			}
		}
		if !slices.Equal(listed, all) {
			t.Errorf("%d locks are listed, %d are held", len(listed), len(all))
		}
		for query, want := range map[string]string{"&sort=queue": last, "&waiting=true": last, "&sort=held": all[0], "&sort=held&after=" + escaped(all[1999]): all[2000]} {
			if names, next := page(query); len(names) == 0 || names[0] != want || next != "" {
				t.Errorf("%s: %d locks and next %q, the first %q, want %q", query, len(names), next, names[:min(1, len(names))], want)
			}
		}
	})
}
