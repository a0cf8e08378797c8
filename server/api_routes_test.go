package server_test

import (
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// grantOf is the pattern of a grant of one lock without a session; the calls' own fields are compared exactly.
const (
	exclusiveA = `{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token:t2>"}],"ttl_ms":30000,"lease_ms":30000,"owner":"me","replayed":false}`
	releasedA  = `{"released":["a"]}`
)

func TestAPIAcquireAndRelease(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA},
			{"POST /v1/acquire", `{"name":"a","owner":"you"}`, nil, 409, `{"code":"held","queue_length":0,"holders":[
				{"owner":"me","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"}]}`},
			{"POST /v1/acquire", `{"name":"a","owner":"you","mode":"shared"}`, nil, 409, `{"code":"held","queue_length":0,"holders":[
				{"owner":"me","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"}]}`},
			{"POST /v1/release", `{"session":"${s}","token":1}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","token":${t},"name":"b"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, releasedA},
			// The session of a grant ends with it; a late duplicate finds nothing (R8).
			{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 410, `{"code":"session_gone"}`},
			// A token may be a text, for readers that round numbers (D03).
			{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":30000}`, nil, 200, exclusiveA},
			{"POST /v1/release", `{"session":"${s}","token":"${t}","name":"a"}`, nil, 200, releasedA},
		})
	})
}

func TestAPISharedAndLimit(t *testing.T) {
	const grant = `{"granted":true,"session":"<session:SESSION>","token":"<token:TOKEN>","locks":[{"name":"pool","mode":"shared","token":"<token>"LIMIT}],"ttl_ms":15000,"lease_ms":15000,"owner":"OWNER","replayed":false}`
	shared := func(session, token, limit, owner string) string {
		return replaceAll(grant, "SESSION", session, "TOKEN", token, "LIMIT", limit, "OWNER", owner)
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/acquire", `{"name":"pool","mode":"shared","limit":2,"owner":"1"}`, nil, 200, shared("s1", "t1", `,"limit":2`, "1")},
			{"POST /v1/acquire", `{"name":"pool","mode":"shared","limit":3,"owner":"x"}`, nil, 409, `{"code":"mode_conflict","limit":2,"requested_limit":3}`},
			{"POST /v1/acquire", `{"name":"pool","mode":"shared","limit":2,"owner":"2"}`, nil, 200, shared("s2", "t2", `,"limit":2`, "2")},
			// One token for all of a shared period (R6).
			{"GET /v1/lock?name=pool", ``, nil, 200, `{"name":"pool","mode":"shared","limit":2,"queue":[],"history":"<list>","delay_remaining_ms":0,"holders":[
				{"owner":"1","mode":"shared","token":${t1},"held_ms":"<number>","remaining_ms":"<number>","session":"${s1.short}"},
				{"owner":"2","mode":"shared","token":${t1},"held_ms":"<number>","remaining_ms":"<number>","session":"${s2.short}"}]}`},
			{"POST /v1/acquire", `{"name":"pool","mode":"shared","limit":2,"owner":"3"}`, nil, 409, `{"code":"held","queue_length":0,"holders":[
				{"owner":"1","mode":"shared","token":${t1},"held_ms":"<number>","remaining_ms":"<number>","session":"${s1.short}"},
				{"owner":"2","mode":"shared","token":${t1},"held_ms":"<number>","remaining_ms":"<number>","session":"${s2.short}"}]}`},
			{"POST /v1/release", `{"session":"${s1}","token":${t1}}`, nil, 200, `{"released":["pool"]}`},
			{"POST /v1/acquire", `{"name":"pool","mode":"shared","owner":"4"}`, nil, 200, shared("s4", "t4", ``, "4")},
			{"POST /v1/release", `{"session":"${s2}","token":${t1}}`, nil, 200, `{"released":["pool"]}`},
			{"POST /v1/release", `{"session":"${s4}","token":${t1}}`, nil, 200, `{"released":["pool"]}`},
		})
	})
}

func TestAPISeveralLocks(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/acquire", `{"locks":[{"name":"b","mode":"shared","limit":3},{"name":"a"}],"owner":"me","ttl_ms":500}`, nil, 200,
				`{"granted":true,"session":"<session:s>","locks":[{"name":"a","mode":"exclusive","token":"<token:ta>"},{"name":"b","mode":"shared","limit":3,"token":"<token:tb>"}],
				"ttl_ms":500,"lease_ms":500,"owner":"me","replayed":false}`},
			{"POST /v1/release", `{"session":"${s}","token":${tb},"name":"b"}`, nil, 200, `{"released":["b"]}`},
			{"POST /v1/release", `{"session":"${s}","token":${tb},"name":"b"}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","token":${ta}}`, nil, 200, `{"released":["a"]}`},
		})
	})
}

func TestAPISession(t *testing.T) {
	const grant = `{"granted":true,"session":"${s}","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":20000,"lease_ms":"<number>","owner":"me","request":1,"replayed":REPLAYED}`
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/session", `{"owner":"me","ttl_ms":20000}`, nil, 201, `{"session":"<session:s>","ttl_ms":20000}`},
			{"POST /v1/renew", `{"session":"${s}"}`, nil, 200, `{"session":"${s}","ttl_ms":20000,"lease_ms":20000,"holds":0,"lost":[]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"task":"job"}`, nil, 200, replaceAll(grant, "REPLAYED", "false")},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"task":"job"}`, nil, 200, replaceAll(grant, "REPLAYED", "true")},
			{"POST /v1/acquire", `{"name":"b","session":"${s}","request":1,"task":"job"}`, nil, 409, `{"code":"request_mismatch"}`},
			{"GET /v1/lock?name=a", ``, nil, 200, `{"name":"a","mode":"exclusive","queue":[],"history":"<list>","delay_remaining_ms":0,"holders":[
				{"owner":"me","task":"job","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"}]}`},
			// A refused try finishes its number.
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":2}`, nil, 409, `{"code":"held","queue_length":0,"holders":[
				{"owner":"me","task":"job","mode":"exclusive","token":${t},"held_ms":"<number>","remaining_ms":"<number>","session":"${s.short}"}]}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":2}`, nil, 409, `{"code":"finished"}`},
			{"POST /v1/renew", `{"session":"${s}","done":1,"ttl_ms":10000}`, nil, 200, `{"session":"${s}","ttl_ms":10000,"lease_ms":"<number>","holds":1,"lost":[]}`},
			{"POST /v1/release", `{"session":"${s}","request":1,"token":1}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","request":3}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/release", `{"session":"${s}","request":1}`, nil, 200, releasedA},
			{"POST /v1/release", `{"session":"${s}","request":1}`, nil, 410, `{"code":"not_held"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":1,"task":"job"}`, nil, 409, `{"code":"finished"}`},
			{"POST /v1/cancel", `{"session":"${s}","request":1}`, nil, 200, `{"state":"finished"}`},
			{"POST /v1/cancel", `{"session":"${s}","request":9}`, nil, 200, `{"state":"cancelled"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":9}`, nil, 409, `{"code":"finished"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":10,"done":10}`, nil, 200,
				`{"granted":true,"session":"${s}","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":10000,"lease_ms":"<number>","owner":"me","request":10,"replayed":false}`},
			{"POST /v1/acquire", `{"name":"b","session":"${s}","request":5}`, nil, 409, `{"code":"finished"}`},
			{"POST /v1/cancel", `{"session":"${s}","request":10}`, nil, 200, `{"state":"released"}`},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":0}`},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 410, `{"code":"session_gone"}`},
			{"POST /v1/renew", `{"session":"${s}"}`, nil, 410, `{"code":"session_gone"}`},
			{"POST /v1/cancel", `{"session":"${s}","request":10}`, nil, 410, `{"code":"session_gone"}`},
			{"POST /v1/acquire", `{"name":"a","session":"${s}","request":11}`, nil, 410, `{"code":"session_gone"}`},
		})
	})
}

func TestAPISessionCloseEndsItsHolds(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.tables([]step{
			{"POST /v1/session", `{"owner":"me"}`, nil, 201, `{"session":"<session:s>","ttl_ms":15000}`},
			{"POST /v1/acquire", `{"locks":[{"name":"a"},{"name":"b"}],"session":"${s}","request":1}`, nil, 200,
				`{"granted":true,"session":"${s}","locks":[{"name":"a","mode":"exclusive","token":"<token>"},{"name":"b","mode":"exclusive","token":"<token>"}],
				"ttl_ms":15000,"lease_ms":"<number>","owner":"me","request":1,"replayed":false}`},
			{"GET /v1/sessions", ``, nil, 200, `{"sessions":[{"id":"${s.short}","owner":"me","ttl_ms":15000,"remaining_ms":"<number>","holds":1,"waits":0}]}`},
			{"POST /v1/session/close", `{"session":"${s}"}`, nil, 200, `{"released":1}`},
			{"GET /v1/sessions", ``, nil, 200, `{"sessions":[]}`},
			{"GET /v1/locks", ``, nil, 200, `{"locks":[]}`},
		})
	})
}

// An acquire with a key is answered the same when it is repeated, and its session is of the grant alone (R8).
func TestAPIKeys(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			key := []string{"Idempotency-Key", "key-" + a.Name(node)}
			grant := `{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":15000,"lease_ms":"<number>","owner":"me","replayed":REPLAYED}`
			for i, s := range []step{
				{"POST /v1/acquire", `{"name":"a","owner":"me"}`, key, 200, replaceAll(grant, "REPLAYED", "false")},
				{"POST /v1/acquire", `{"name":"a","owner":"me"}`, key, 200, replaceAll(grant, "REPLAYED", "true", "<session:s>", "${s}", `"<token:t>"`, "${t}")},
				{"POST /v1/acquire", `{"name":"a","owner":"other"}`, key, 409, `{"code":"request_mismatch"}`},
				{"POST /v1/acquire", `{"name":"a","owner":"me","mode":"shared"}`, key, 409, `{"code":"request_mismatch"}`},
				{"POST /v1/acquire", `{"name":"b","session":"${s}","request":1}`, nil, 400, `{"code":"invalid","field":"session"}`},
				{"POST /v1/renew", `{"session":"${s}"}`, nil, 200, `{"session":"${s}","ttl_ms":15000,"lease_ms":15000,"holds":1,"lost":[]}`},
				{"POST /v1/cancel", ``, key, 200, `{"state":"released"}`},
				{"POST /v1/cancel", `{}`, key, 200, `{"state":"finished"}`},
				{"POST /v1/acquire", `{"name":"a","owner":"me"}`, key, 409, `{"code":"finished"}`},
				{"POST /v1/cancel", ``, []string{"Idempotency-Key", "ahead-" + a.Name(node)}, 200, `{"state":"cancelled"}`},
				{"POST /v1/acquire", `{"name":"a","owner":"me"}`, []string{"Idempotency-Key", "ahead-" + a.Name(node)}, 409, `{"code":"finished"}`},
			} {
				a.step((node+i)%a.Size(), s)
			}
		}
	})
}

// The lease on the wire is that of the call, also for one answered after a wait (R9), and a wait may be longer than any
// bound on requests.
func TestAPILeaseOfALateGrant(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			a.step(node, step{"POST /v1/acquire", `{"name":"a","owner":"me","ttl_ms":20000}`, nil, 200,
				`{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":20000,"lease_ms":20000,"owner":"me","replayed":false}`})
			began := time.Now()
			a.step(node, step{"POST /v1/acquire", `{"name":"a","owner":"you","ttl_ms":1000,"wait_ms":60000}`, nil, 200,
				`{"granted":true,"session":"<session:s2>","token":"<token:t2>","locks":[{"name":"a","mode":"exclusive","token":"<token>"}],"ttl_ms":1000,"lease_ms":"<number:lease>","owner":"you","replayed":false}`})
			waited := time.Since(began)
			lease := time.Duration(number(a.vars["lease"])) * time.Millisecond
			if waited < 20*time.Second-10*time.Millisecond || lease > waited+time.Second+10*time.Millisecond || lease < waited+time.Second-50*time.Millisecond {
				a.t.Errorf("granted after %v with a lease of %v counted from the beginning, want about 1 s more", waited, lease)
			}
			if number(a.vars["t2"]) <= number(a.vars["t"]) {
				a.t.Errorf("token %s after %s", a.vars["t2"], a.vars["t"])
			}
			a.step(node, step{"POST /v1/release", `{"session":"${s2}","token":${t2}}`, nil, 200, releasedA})
		}
	})
}
