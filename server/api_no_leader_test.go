package server_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// needsLeader lists one good call of each route that a leader must answer.
func needsLeader() []step {
	const want = `{"code":"no_leader"}`
	steps := []step{
		{"GET /v1/lock?name=n", ``, nil, 503, want}, {"GET /v1/locks", ``, nil, 503, want}, {"GET /v1/sessions", ``, nil, 503, want}, {"GET /v1/cluster", ``, nil, 503, want},
		{"GET /v1/locks?consistency=linearizable", ``, nil, 503, want},
		{"POST /v1/acquire", `{"name":"free","owner":"o"}`, []string{"Idempotency-Key", "k"}, 503, want},
		{"POST /v1/acquire", `{"name":"free","owner":"o","wait_ms":60000}`, nil, 503, want},
		{"POST /v1/cancel", ``, []string{"Idempotency-Key", "k"}, 503, want},
	}
	for path, bodies := range goodBodies {
		for _, fields := range bodies {
			steps = append(steps, step{"POST " + path, object(fields), nil, 503, want})
		}
	}
	return steps
}

// within is a step that must be answered in time.
func (a *api) within(limit time.Duration, node int, s step) {
	a.t.Helper()
	began := time.Now()
	a.step(node, s)
	if took := time.Since(began); took > limit {
		a.t.Errorf("%s to %s took %v", a.what(s), a.Name(node), took)
	}
}

// Without a leader every call says so soon, and says that nothing was done; what needs none still works (D01, F04).
func TestAPINoLeader(t *testing.T) {
	for survivor := range 3 {
		apiBubble(t, pawltest.Options{}, func(a *api) {
			a.holdSome()
			index := a.settled()
			a.cluster()
			for i := range a.Size() {
				if i != survivor {
					a.Crash(i)
				}
			}
			time.Sleep(5 * time.Second) // a leader has noticed that it leads nobody
			a.quiet = true
			for _, s := range needsLeader() {
				a.within(2*time.Second, survivor, s)
			}
			a.within(100*time.Millisecond, survivor, step{"GET /livez", ``, nil, 200, `{"ok":true}`})
			a.within(2*time.Second, survivor, step{"GET /readyz", ``, nil, 503, `{"ok":false,"reason":"<text>"}`})
			a.within(100*time.Millisecond, survivor, step{"GET /v1/lock?name=n&consistency=stale", ``, nil, 200, `{"name":"n","mode":"exclusive","queue":[],"history":[],"delay_remaining_ms":0,"holders":[
				{"owner":"holder","mode":"exclusive","token":"<token>","held_ms":"<number>","remaining_ms":"<number>","session":"<short>"}]}`})
			if a.vars["#cluster"] == "" {
				t.Error("the cluster has no id")
			}
			var cluster transport.ClusterResponse
			a.MustGet(survivor, "/v1/cluster?consistency=stale").Into(t, &cluster)
			if cluster.Leader != "" || cluster.FailuresTolerated != 0 || len(cluster.Members) != 3 || float64(cluster.Index) != index {
				t.Errorf("cluster %+v, index was %v", cluster, index)
			}
			for _, m := range cluster.Members {
				if m.Alive != (m.Name == a.Name(survivor)) {
					t.Errorf("member %+v", m)
				}
			}
			// Bad input is refused here as anywhere.
			for _, s := range []step{
				{"POST /v1/acquire", `{"name":"n"}`, nil, 400, `{"code":"invalid","field":"owner"}`}, {"GET /v1/lock", ``, nil, 400, `{"code":"invalid","field":"name"}`},
				{"GET /v1/locks?limit=0", ``, nil, 400, `{"code":"invalid","field":"limit"}`}, {"GET /v1/sessions?after=x", ``, nil, 400, `{"code":"invalid","field":"after"}`},
				{"GET /v1/acquire", ``, nil, 405, `{"code":"method_not_allowed"}`}, {"GET /v1/nothing", ``, nil, 404, `{"code":"not_found"}`},
			} {
				a.within(100*time.Millisecond, survivor, s)
			}
			a.quiet = false
			for i := range a.Size() {
				if i != survivor {
					a.Start(i)
				}
			}
			a.WaitReady()
			a.MustPost(survivor, 409, "/v1/acquire", `{"name":"n","owner":"you"}`)
			a.step(survivor, step{"GET /v1/lock?name=free", ``, nil, 200, `{"name":"free","holders":[],"queue":[],"history":[],"delay_remaining_ms":0}`})
		})
	}
}

// With one node of three lost, the others are ready again within 5 s (F04).
func TestAPIOneNodeLost(t *testing.T) {
	for lost := range 3 {
		apiBubble(t, pawltest.Options{}, func(a *api) {
			a.cluster()
			a.Crash(lost)
			time.Sleep(5 * time.Second)
			for i := range a.Size() {
				if i != lost {
					a.step(i, step{"GET /livez", ``, nil, 200, `{"ok":true}`})
					a.step(i, step{"GET /readyz", ``, nil, 200, `{"ok":true}`})
				}
			}
		})
	}
}

// The leader is cut off immediately before the calls, so that the others still name it and pass them on (D01).
func TestAPILeaderCutOff(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.settled()
		leader := a.Leader()
		follower := (leader + 1) % 3
		a.Network.Isolate(a.Name(leader))
		a.Network.Cut(a.Name(follower), a.Name((leader+2)%3))
		a.unanswered(follower, 7*time.Second) // a change that may have arrived: by the pings between nodes
	})
}

// A leader that is cut off from the others, and does not know it yet, answers nothing from its memory (R4, R15).
func TestAPIDeposedLeader(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.settled()
		leader := a.Leader()
		for i := range a.Size() {
			if i != leader {
				a.Network.Cut(a.Name(leader), a.Name(i))
			}
		}
		if !a.Node(leader).Leads() {
			t.Fatal("it knows")
		}
		a.unanswered(leader, 2*time.Second)
	})
}

// unanswered sends all calls that need a leader at once: each is told that nothing was done, within 2 s, or those that may
// have done something that nobody knows, within limit.
func (a *api) unanswered(node int, limit time.Duration) {
	a.t.Helper()
	answers := make(chan string)
	calls := needsLeader()
	for _, s := range calls {
		go func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			method, path, _ := strings.Cut(s.call, " ")
			answer, err := a.send(ctx, node, method, path, s.body, s.header...)
			took := time.Since(began)
			code, _ := answer.Field("code").(string)
			switch {
			case err != nil:
				answers <- a.what(s) + ": " + err.Error()
			case code != "no_leader" && (method == "GET" || code != "unknown_outcome"):
				answers <- a.what(s) + ": " + string(answer.Body)
			case strings.Contains(s.body, "wait_ms") && code == "unknown_outcome" && took < 18*time.Second:
				// The node waits for another leader in the stead of a caller that cannot come again.
				answers <- ""
			case code == "no_leader" && took > 2*time.Second, took > limit:
				answers <- a.what(s) + ": " + code + " after " + took.String()
			default:
				answers <- ""
			}
		}()
	}
	for range calls {
		if problem := <-answers; problem != "" {
			a.t.Error(problem)
		}
	}
}

// peer is the peer port of a node that is no member.
func (a *api) peer() *peer.Port {
	a.t.Helper()
	port, err := peer.Open(peer.Config{
		Network: a.Network.Host("n9"), Listen: "n9:7800", Self: peer.Identity{Name: "n9", Incarnation: peer.NewIncarnation()}, Cluster: a.cluster,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return port
}

// A peer whose body stalls is not waited for either.
func TestAPIStalledPeer(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		port := a.peer()
		defer port.Close()
		for node := range a.Size() {
			body, hold := io.Pipe()
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			answer, err := sendTo(ctx, port.HTTPClient(a.Name(node)+":7800", ""), "http://"+a.Name(node)+":7800", "POST", "/v1/acquire", body)
			if took := time.Since(began); err != nil || answer.Status != 400 || took > 16*time.Second {
				t.Errorf("%s: %v %d %s after %v", a.Name(node), err, answer.Status, answer.Body, took)
			}
			cancel()
			hold.Close()
		}
	})
}

// A call that a node passed on is answered where it arrives, also by a node that does not lead: two nodes that each take
// the other for the leader make no loop (D01).
func TestAPIPassedOnOnce(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		port := a.peer()
		defer port.Close()
		leader := a.Leader()
		for node := range a.Size() {
			client := port.HTTPClient(a.Name(node)+":7800", "")
			for _, s := range needsLeader() {
				method, path, _ := strings.Cut(s.call, " ")
				if path == "/v1/raise" || path == "/v1/session" {
					continue // the leader would do it
				}
				began := time.Now()
				answer, err := sendTo(context.Background(), client, "http://"+a.Name(node)+":7800", method, path, strings.NewReader(s.body), s.header...)
				if err != nil {
					t.Fatal(err)
				}
				if node == leader {
					if answer.Field("code") == "no_leader" {
						t.Errorf("%s to the leader: %s", a.what(s), answer.Body)
					}
					continue
				}
				a.check(node, s, answer)
				if answer.Header.Get(transport.HeaderNode) != a.Name(node) || time.Since(began) > 2*time.Second {
					t.Errorf("%s to %s: answered by %s after %v", a.what(s), a.Name(node), answer.Header.Get(transport.HeaderNode), time.Since(began))
				}
			}
		}
	})
}
