package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// memberPattern is a member that works.
func memberPattern(name string) string {
	return replaceAll(`{"name":"N","address":"N:7800","api_url":"http://N:7700","role":"voter","incarnation":"<text>","version":"test","last_contact_ms":"<number>","lag":"<number>","alive":true}`, "N", name)
}

func clusterPattern(leader string) string {
	return `{"id":"<text>","leader":"` + leader + `","term":"<number>","index":"<token>","feature_level":"<number>","quorum":2,"failures_tolerated":1,"members":[` +
		memberPattern("n1") + "," + memberPattern("n2") + "," + memberPattern("n3") + `]}`
}

func TestAPICluster(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			leader := a.Name(a.Leader())
			for _, query := range []string{"", "?consistency=linearizable", "?consistency=stale"} {
				answer := a.step(node, step{"GET /v1/cluster" + query, ``, nil, 200, clusterPattern(leader)})
				// What was answered here is what this node says only when it may be stale.
				if got := answer.Header.Get(transport.HeaderNode); query == "?consistency=stale" && got != a.Name(node) || query != "?consistency=stale" && got != leader {
					t.Errorf("%s asked %s: answered by %s", query, a.Name(node), got)
				}
			}
			a.step(node, step{"GET /livez", ``, nil, 200, `{"ok":true}`})
			a.step(node, step{"GET /readyz", ``, nil, 200, `{"ok":true}`})
			a.step(node, step{"GET /readyz?consistency=stale", ``, nil, 200, `{"ok":true}`})
			a.step(node, step{"POST /v1/cluster/transfer", `{"to":"nobody"}`, nil, 409, `{"code":"membership"}`})
			a.step(node, step{"POST /v1/cluster/transfer", `{"to":"` + leader + `"}`, nil, 200, `{"leader":"` + leader + `"}`})
			a.step(node, step{"POST /v1/cluster/remove", `{"name":"nobody"}`, nil, 409, `{"code":"membership"}`})
		}
	})
}

// Leadership goes where it is sent, asked of any node, and holds live through it.
func TestAPITransfer(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		grant := a.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":60000}`)
		for node := range a.Size() {
			for to := range a.Size() {
				a.step(node, step{"POST /v1/cluster/transfer", `{"to":"` + a.Name(to) + `"}`, nil, 200, `{"leader":"` + a.Name(to) + `"}`})
				if got := a.Leader(); got != to {
					t.Errorf("%s leads, want %s", a.Name(got), a.Name(to))
				}
			}
			before := a.Name(a.Leader())
			answer := a.step(node, step{"POST /v1/cluster/transfer", `{}`, nil, 200, `{"leader":"<text:new>"}`})
			if a.vars["new"] == before || a.vars["new"] != a.Name(a.Leader()) {
				t.Errorf("handed over by %s: %s, and %s leads", before, answer.Body, a.Name(a.Leader()))
			}
			a.step(node, step{"POST /v1/acquire", `{"name":"a","owner":"you"}`, nil, 409, fmt.Sprintf(`{"code":"held","queue_length":0,"holders":[
				{"owner":"me","mode":"exclusive","token":%v,"held_ms":"<number>","remaining_ms":"<number>","session":"<short>"}]}`, grant.Field("token"))})
		}
	})
}

// A raise ends everything, and every later token is above what it names (R10).
func TestAPIRaise(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			above := int64(1_000_000) * int64(node+1)
			grant := a.MustPost(node, 200, "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":60000}`)
			waiter := make(chan pawltest.Answer, 1)
			go func() {
				answer, _ := a.Post(context.Background(), node, "/v1/acquire", `{"name":"a","owner":"w","wait_ms":60000}`)
				waiter <- answer
			}()
			a.queued("a", 1)
			a.step(node, step{"POST /v1/raise", fmt.Sprintf(`{"above":%d,"reason":"test"}`, above), nil, 200, `{"next_token_above":"<token:base>"}`})
			if number(a.vars["base"]) < above {
				t.Errorf("base %s, want %d or more", a.vars["base"], above)
			}
			if answer := <-waiter; answer.Status != 410 || answer.Field("code") != "session_gone" {
				t.Errorf("the waiter was told %d %s", answer.Status, answer.Body)
			}
			a.step(node, step{"POST /v1/release", released(grant), nil, 410, `{"code":"session_gone"}`})
			a.step(node, step{"GET /v1/locks", ``, nil, 200, `{"locks":[]}`})
			next := a.MustPost(node, 200, "/v1/acquire", `{"name":"a","owner":"me"}`)
			if next.Field("token").(float64) <= float64(number(a.vars["base"])) {
				t.Errorf("token %v is not above %s", next.Field("token"), a.vars["base"])
			}
			a.MustPost(node, 200, "/v1/release", released(next))
			// One that names less ends everything too, and takes no token back.
			a.MustPost(node, 200, "/v1/raise", `{"above":1,"reason":"test"}`)
			later := a.MustPost(node, 200, "/v1/acquire", `{"name":"a","owner":"me"}`)
			if later.Field("token").(float64) <= next.Field("token").(float64) {
				t.Errorf("token %v after %v", later.Field("token"), next.Field("token"))
			}
			a.MustPost(node, 200, "/v1/release", released(later))
		}
	})
}

// Each node can be removed, asked of each; what would lose the quorum is refused unless forced.
func TestAPIRemove(t *testing.T) {
	for asked := range 3 {
		for removed := range 3 {
			apiBubble(t, pawltest.Options{}, func(a *api) {
				grant := a.MustPost(asked, 200, "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":60000}`)
				answer := a.MustPost(asked, 200, "/v1/cluster/remove", `{"name":"`+a.Name(removed)+`"}`)
				var left transport.MembershipResponse
				if answer.Into(t, &left); len(left.Members) != 2 {
					t.Fatalf("members %s", answer.Body)
				}
				for _, m := range left.Members {
					if m.Name == a.Name(removed) || m.Role != transport.RoleVoter || !m.Alive {
						t.Errorf("member %+v after %s was removed", m, a.Name(removed))
					}
				}
				other := (removed + 1) % 3
				a.Leader()
				a.step(other, step{"POST /v1/cluster/remove", `{"name":"` + a.Name(removed) + `"}`, nil, 409, `{"code":"membership"}`})
				ready, err := a.Get(context.Background(), removed, "/readyz")
				for end := time.Now().Add(5 * time.Second); err == nil && ready.Status == 200 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					ready, err = a.Get(context.Background(), removed, "/readyz")
				}
				if err != nil || ready.Status != 503 || ready.Field("reason") == nil {
					t.Errorf("the removed node: %v %d %s", err, ready.Status, ready.Body)
				}
				a.MustPost(other, 200, "/v1/release", released(grant))
			})
		}
	}
}

func TestAPIRemoveBelowTheQuorum(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		leader := a.Leader()
		dead, alive := (leader+1)%3, (leader+2)%3
		a.Stop(dead)
		a.MustPost(leader, 200, "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":60000}`)
		for _, name := range []string{a.Name(alive), a.Name(leader)} {
			a.step(alive, step{"POST /v1/cluster/remove", `{"name":"` + name + `"}`, nil, 409, `{"code":"membership"}`})
		}
		a.MustPost(alive, 200, "/v1/cluster/remove", `{"name":"`+a.Name(dead)+`"}`)
		a.MustPost(alive, 409, "/v1/acquire", `{"name":"a","owner":"you"}`)
	})
}
