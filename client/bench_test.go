package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// BenchmarkAcquireRelease compares acquire and release through a Client with the same two requests sent by hand, in one
// session, against a server on loopback that only answers: so the cost is that of the client's side, and of HTTP. Besides
// the time it tells the CPU time of the whole process.
func BenchmarkAcquireRelease(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(answerBench))
	defer server.Close()
	b.Run("raw", func(b *testing.B) {
		raw := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
		defer raw.CloseIdleConnections()
		number := uint64(0)
		measure(b, func() error {
			number++
			var grant transport.AcquireResponse
			if err := sendRaw(raw, server.URL+"/v1/acquire", transport.AcquireRequest{
				Locks: []transport.LockRequest{{Name: "x"}}, Session: benchSession, Request: number, Done: number, WaitMS: 25000}, &grant); err != nil {
				return err
			}
			var released transport.ReleaseResponse
			return sendRaw(raw, server.URL+"/v1/release", transport.ReleaseRequest{Session: benchSession, Request: number}, &released)
		})
	})
	b.Run("sdk", func(b *testing.B) {
		c, err := client.New([]string{server.URL})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close(context.Background())
		ctx := context.Background()
		measure(b, func() error {
			l, err := c.Acquire(ctx, "x")
			if err != nil {
				return err
			}
			return l.Release(ctx)
		})
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
	default:
		_, _ = w.Write([]byte(`{"released":["x"]}`))
	}
}

func sendRaw(c *http.Client, url string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	response, err := c.Post(url, transport.TypeJSON, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return json.Unmarshal(data, answer)
}

// measure tells the CPU time of a round beside what every benchmark tells.
func measure(b *testing.B, round func() error) {
	b.ReportAllocs()
	runtime.GC()
	before := cpuTime()
	for b.Loop() {
		if err := round(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
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
