package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// BenchmarkAcquireRelease compares acquire and release through a Client with the same two requests sent by hand, in one
// session: against a server that only answers, where nothing hides the client's own cost, and against a node. Both are in the
// same process, over loopback. "ratio" does some of one and some of the other in turn, and tells by how much the CPU time of
// the whole process differs: that is less disturbed by what else runs.
func BenchmarkAcquireRelease(b *testing.B) {
	b.Run("stub", func(b *testing.B) {
		server := httptest.NewServer(http.HandlerFunc(answerBench))
		defer server.Close()
		compare(b, server.URL)
	})
	b.Run("node", func(b *testing.B) {
		c := pawltest.New(b, pawltest.Options{Nodes: 1, TCP: true})
		defer c.Close()
		c.WaitReady()
		compare(b, c.URL(0))
	})
}

func compare(b *testing.B, url string) {
	plain := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer plain.CloseIdleConnections()
	var session transport.SessionResponse
	if err := sendRaw(plain, url+"/v1/session", transport.SessionRequest{Owner: "raw", TTLMS: 3_600_000}, &session); err != nil {
		b.Fatal(err)
	}
	number := uint64(0)
	raw := func() error {
		number++
		var grant transport.AcquireResponse
		if err := sendRaw(plain, url+"/v1/acquire", transport.AcquireRequest{
			Locks: []transport.LockRequest{{Name: "x"}}, Session: session.Session, Request: number, Done: number, WaitMS: 25000}, &grant); err != nil {
			return err
		}
		var released transport.ReleaseResponse
		return sendRaw(plain, url+"/v1/release", transport.ReleaseRequest{Session: session.Session, Request: number}, &released)
	}
	c, err := client.New([]string{url})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	ctx := context.Background()
	sdk := func() error {
		l, err := c.Acquire(ctx, "x")
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	b.Run("raw", func(b *testing.B) { measure(b, raw) })
	b.Run("sdk", func(b *testing.B) { measure(b, sdk) })
	b.Run("ratio", func(b *testing.B) {
		var spent [2]time.Duration
		for b.Loop() {
			for i, round := range []func() error{raw, sdk} {
				before := cpuTime()
				for range 50 {
					if err := round(); err != nil {
						b.Fatal(err)
					}
				}
				spent[i] += cpuTime() - before
			}
		}
		b.ReportMetric(float64(spent[1])/float64(spent[0]), "sdk/raw")
	})
}

// benchSession is as long as the server's.
const benchSession = "0123456789abcdefghijklmnop"

func answerBench(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", transport.TypeJSON)
	switch r.URL.Path {
	case "/v1/acquire":
		var request transport.AcquireRequest
		_ = json.Unmarshal(body, &request)
		_ = json.NewEncoder(w).Encode(transport.AcquireResponse{Granted: true, Session: benchSession, Token: 7, Request: request.Request, TTLMS: 15000, LeaseMS: 15000,
			Locks: []transport.GrantedLock{{Name: "x", Mode: transport.ModeExclusive, Token: 7}}})
	case "/v1/session":
		_ = json.NewEncoder(w).Encode(transport.SessionResponse{Session: benchSession, TTLMS: 15000})
	case "/v1/session/close":
		_, _ = w.Write([]byte(`{"released":0}`))
	default:
		_, _ = w.Write([]byte(`{"released":["x"]}`))
	}
}

func sendRaw(c *http.Client, url string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // as everybody must
	defer cancel()
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", transport.TypeJSON)
	response, err := c.Do(post)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return json.Unmarshal(data, answer)
}

func measure(b *testing.B, round func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if err := round(); err != nil {
			b.Fatal(err)
		}
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestManyLocksOneRenewal: ten thousand locks cost the cluster no more renewals than one does.
func TestManyLocksOneRenewal(t *testing.T) {
	locks := 10_000
	if testing.Short() {
		locks = 1000
	}
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		counted := &countingTransport{RoundTripper: c.ClientAt("many").Transport}
		k := connect(t, c, "many", client.WithHTTPClient(&http.Client{Transport: counted}), client.WithTTL(15*time.Second))
		defer k.close()
		all := make([]*client.Lock, 0, locks)
		for len(all) < locks {
			var names []string
			for i := range 64 {
				names = append(names, fmt.Sprint("lock-", len(all), "-", i))
			}
			l, err := k.AcquireAll(context.Background(), names[:min(64, locks-len(all))])
			if err != nil {
				t.Fatal(err)
			}
			for range l.Names() {
				all = append(all, l)
			}
		}
		before := len(counted.asked())
		time.Sleep(5 * time.Minute)
		asked := counted.asked()[before:]
		renewals := 0
		for _, path := range asked {
			if path == "/v1/renew" {
				renewals++
			}
		}
		if want := 60; renewals < want-2 || renewals > want+2 || len(asked) != renewals {
			t.Errorf("%d locks cost %d requests in five minutes, %d of them renewals; want %d", locks, len(asked), renewals, want)
		}
		for _, l := range all {
			if !l.Held() {
				t.Fatal(l.Err())
			}
		}
	})
}
