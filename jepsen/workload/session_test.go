package workload

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// answers is a node that gives one answer for each path, and remembers what it was asked.
type answers struct {
	status map[string]int
	body   map[string]string
	asked  []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.asked = append(a.asked, r.URL.Path)
	time.Sleep(time.Second) // or a wait of 40 s would ask for ever, in no time
	status, found := a.status[r.URL.Path]
	if !found {
		status = http.StatusOK
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(a.body[r.URL.Path])), Request: r}, nil
}

// Nobody can say whether a session whose release or cancel has an unknown outcome keeps the lock: its client ends it.
func TestUnsureSessionsAreEnded(t *testing.T) {
	const unknown = `{"code":"unknown_outcome","applied":"unknown"}`
	granted := `{"granted":true,"session":"s","token":5,"locks":[{"name":"fair/a","mode":"exclusive","token":5}],"ttl_ms":6000,"lease_ms":6000}`
	for name, nodes := range map[string]*answers{
		"release": {
			status: map[string]int{"/v1/release": http.StatusGatewayTimeout},
			body:   map[string]string{"/v1/acquire": granted, "/v1/release": unknown},
		},
		"cancel": {
			status: map[string]int{"/v1/acquire": http.StatusAccepted, "/v1/cancel": http.StatusGatewayTimeout},
			body:   map[string]string{"/v1/acquire": `{"granted":false}`, "/v1/cancel": unknown},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				nodes.body["/v1/session"] = `{"session":"s","ttl_ms":6000}`
				nodes.body["/v1/session/close"] = `{"released":1}`
				nodes.body["/v1/renew"] = `{"session":"s","ttl_ms":6000,"lease_ms":6000}`
				now := func() time.Duration { return time.Since(began) }
				e := &Env{
					Client: cluster.Client{Endpoints: []string{"http://n1"}, HTTP: &http.Client{Transport: nodes}, Clock: now, Point: func(context.Context) {}},
					Rand:   rand.New(rand.NewPCG(1, 2)), History: history.New(now, 1000), Now: now, Rate: 1, Clients: 1,
					Sleep: func(ctx context.Context, d time.Duration) error {
						select {
						case <-time.After(d):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					},
				}
				e.Begin()
				c := e.connect()
				defer e.disconnect(c)
				s := e.open(t.Context(), c.Calls(), longestTTL)
				if s == nil {
					t.Fatal("no session")
				}
				s.until = time.Hour // it is renewed
				if (fair{}).round(t.Context(), s) {
					t.Errorf("it goes on with the session; asked %v", slices.Compact(nodes.asked))
				}
				if !s.unsure {
					t.Error("it is sure")
				}
			})
		})
	}
}
