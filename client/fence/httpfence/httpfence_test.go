package httpfence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/boltfence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/httpfence"
)

func byPath(r *http.Request) string { return r.URL.Path }

// serve starts a real server with handler behind the middleware.
func serve(t *testing.T, c httpfence.Config, handler http.Handler) *httptest.Server {
	t.Helper()
	if c.Name == nil {
		c.Name = byPath
	}
	if c.Unstamped == 0 {
		c.Unstamped = httpfence.RefuseUnstamped
	}
	fenced, err := httpfence.New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(fenced(handler))
	t.Cleanup(server.Close)
	return server
}

// put is what a caller does.
func put(ctx context.Context, url string, stamp fence.Stamp, content string) error {
	request, err := http.NewRequestWithContext(fence.WithStamp(ctx, stamp), http.MethodPut, url, strings.NewReader(content))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: httpfence.Transport{}}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	if err := httpfence.Refused(response); err != nil {
		return err
	}
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("answer %s", response.Status)
	}
	return nil
}

// page is a handler that keeps its content in memory.
type page struct {
	mu      sync.Mutex
	content string
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.content = string(body)
	p.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func TestKitWithMemory(t *testing.T) {
	fencetest.Run(t, 25, func(t *testing.T) fencetest.Resource {
		guard, p := fence.NewGuard(10), &page{}
		server := serve(t, httpfence.Config{Store: guard.Store()}, p)
		return fencetest.Resource{
			Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
				return put(ctx, server.URL+"/report", stamp, content)
			},
			Read: func(context.Context) (string, fence.Stamp, error) {
				for { // until nobody wrote between
					before := guard.Newest("/report")
					p.mu.Lock()
					content := p.content
					p.mu.Unlock()
					if guard.Newest("/report") == before {
						return content, before, nil
					}
				}
			},
		}
	})
}

func openBolt(t *testing.T) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

var data = []byte("data")

// boltPage writes in the transaction that the store has begun. With X-End it ends badly after that.
func boltPage(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		var bucket *bbolt.Bucket
		if bucket, err = boltfence.Tx(r.Context()).CreateBucketIfNotExists(data); err == nil {
			err = bucket.Put([]byte(r.URL.Path), body)
		}
	}
	if err != nil {
		panic(err)
	}
	switch r.Header.Get("X-End") {
	case "conflict":
		w.Header().Set("X-Reason", "other")
		http.Error(w, "a conflict", http.StatusConflict)
	case "panic":
		panic(http.ErrAbortHandler)
	case "large":
		_, _ = w.Write(make([]byte, httpfence.DefaultMaxBody+1))
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func boltResource(db *bbolt.DB, url string) fencetest.Resource {
	return fencetest.Resource{
		Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
			return put(ctx, url+"/report", stamp, content)
		},
		Read: func(context.Context) (content string, mark fence.Stamp, err error) {
			err = db.View(func(tx *bbolt.Tx) error {
				if bucket := tx.Bucket(data); bucket != nil {
					content = string(bucket.Get([]byte("/report")))
				}
				mark, err = boltfence.Newest(tx, "/report")
				return err
			})
			return content, mark, err
		},
	}
}

func TestKitWithBolt(t *testing.T) {
	fencetest.Run(t, 10, func(t *testing.T) fencetest.Resource {
		db := openBolt(t)
		return boltResource(db, serve(t, httpfence.Config{Store: boltfence.Store(db)}, http.HandlerFunc(boltPage)).URL)
	})
}

// A handler that refuses, panics or answers too much has written nothing, and its stamp may be used
// again.
func TestHandlerThatFails(t *testing.T) {
	db := openBolt(t)
	quiet := slog.New(slog.DiscardHandler)
	server := serve(t, httpfence.Config{Store: boltfence.Store(db), Log: quiet}, http.HandlerFunc(boltPage))
	r := boltResource(db, server.URL)
	if err := r.Write(t.Context(), fencetest.Exclusive(33, 1), "33.1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		end    string
		status int // 0: the connection is cut
	}{{"conflict", 409}, {"panic", 0}, {"large", 500}} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/report", strings.NewReader("half done"))
		request.Header.Set(httpfence.Header, "41.1")
		request.Header.Set("X-End", c.end)
		response, err := http.DefaultClient.Do(request)
		if (err != nil) != (c.status == 0) || err == nil && response.StatusCode != c.status {
			t.Errorf("%s: %v %v", c.end, response, err)
		}
		if c.end == "conflict" && err == nil { // the answer is the handler's own
			body, _ := io.ReadAll(response.Body)
			if string(body) != "a conflict\n" || response.Header.Get("X-Reason") != "other" || httpfence.Refused(response) != nil {
				t.Errorf("%q %v", body, response.Header)
			}
		}
		if err == nil {
			_ = response.Body.Close()
		}
		fencetest.Expect(t, r, fencetest.Exclusive(33, 1))
	}
	if err := r.Write(t.Context(), fencetest.Exclusive(41, 1), "41.1"); err != nil {
		t.Error(err)
	}
}

// "Done" is not said before the store has confirmed, and what went wrong is told to operators only.
func TestStoreThatFails(t *testing.T) {
	var log bytes.Buffer
	store := func(ctx context.Context, _ string, _ fence.Stamp, write func(context.Context) error) error {
		if err := write(ctx); err != nil {
			return err
		}
		return errors.New("the secret disk is full")
	}
	server := serve(t, httpfence.Config{Store: store, Log: slog.New(slog.NewTextHandler(&log, nil))}, &page{})
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/report", nil)
	request.Header.Set(httpfence.Header, "41.1")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != 500 || bytes.Contains(body, []byte("secret")) || response.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s", response.Status, body)
	}
	if !strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), "41.1") {
		t.Errorf("the log says %q", log.String())
	}
}

func TestAnswers(t *testing.T) {
	type call struct {
		method string
		stamps []string
		body   string
		path   string
		status int
		code   string
	}
	do := func(t *testing.T, server *httptest.Server, c call) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header[httpfence.Header] = c.stamps
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // it was read
		var problem struct {
			Type, Title, Code string
			Status            int
		}
		if c.code != "" {
			if err := json.NewDecoder(response.Body).Decode(&problem); err != nil {
				t.Errorf("%v: %v", c, err)
			}
			if problem.Code != c.code || problem.Status != c.status || problem.Type != "urn:pawl:fence:"+c.code || problem.Title == "" ||
				response.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%v: %+v %v", c, problem, response.Header)
			}
		}
		if response.StatusCode != c.status {
			t.Errorf("%v: %s", c, response.Status)
		}
	}
	name := func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }
	strict := serve(t, httpfence.Config{Store: fence.NewGuard(10).Store(), Name: name, MaxBody: 10}, &page{})
	for _, c := range []call{
		{"PUT", []string{"41.1"}, "x", "/a", 204, ""},
		{"PUT", []string{"33.9"}, "x", "/a", 412, "stale_stamp"},
		{"PUT", []string{"41.1"}, "x", "/a", 412, "stale_stamp"},
		{"PUT", []string{"33.9"}, "x", "/b", 204, ""}, // another name has another mark
		{"PUT", nil, "x", "/a", 428, "stamp_required"},
		{"PUT", []string{""}, "x", "/a", 400, "invalid"},
		{"PUT", []string{"41"}, "x", "/a", 400, "invalid"},
		{"PUT", []string{"42.1", "43.1"}, "x", "/a", 400, "invalid"},
		{"PUT", []string{"42.1, 43.1"}, "x", "/a", 400, "invalid"},
		{"PUT", []string{"42.1"}, "x", "/", 400, "invalid"},
		{"PUT", []string{"42.1"}, "eleven bytes", "/a", 413, "too_large"},
		{"POST", []string{"41.1"}, "", "/a", 412, "stale_stamp"},
		{"PATCH", []string{"41.1"}, "", "/a", 412, "stale_stamp"},
		{"DELETE", []string{"41.1"}, "", "/a", 412, "stale_stamp"},
		{"PURGE", []string{"41.1"}, "", "/a", 412, "stale_stamp"}, // a method that nobody knows may write
		{"GET", []string{"1.1"}, "", "/a", 204, ""},
		{"HEAD", nil, "", "/a", 204, ""},
		{"OPTIONS", nil, "", "/a", 204, ""},
		{"TRACE", nil, "", "/a", 204, ""},
		{"PUT", []string{"41.2"}, "x", "/a", 204, ""}, // nothing of all that moved the mark
	} {
		do(t, strict, c)
	}
	lax := serve(t, httpfence.Config{Store: fence.NewGuard(10).Store(), Unstamped: httpfence.PassUnstamped}, &page{})
	for _, c := range []call{
		{"PUT", []string{"41.1"}, "x", "/a", 204, ""},
		{"PUT", nil, "x", "/a", 204, ""},
		{"PUT", []string{"33.1"}, "x", "/a", 412, "stale_stamp"},
		{"PUT", []string{"41"}, "x", "/a", 400, "invalid"},
	} {
		do(t, lax, c)
	}
}

// TestSuspendedSender: a caller that is suspended while it sends its body keeps no newer one
// waiting, and is refused when it goes on.
func TestSuspendedSender(t *testing.T) {
	p, arrived := &page{}, make(chan bool, 2)
	name := func(r *http.Request) string { arrived <- true; return byPath(r) }
	server := serve(t, httpfence.Config{Store: fence.NewGuard(10).Store(), Name: name}, p)
	connection, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close() //nolint:errcheck // a test's
	if _, err := fmt.Fprintf(connection, "PUT /report HTTP/1.1\r\nHost: x\r\nConnection: close\r\nPawl-Stamp: 33.1\r\nContent-Length: 8\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	<-arrived
	patient, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := put(patient, server.URL+"/report", fencetest.Exclusive(41, 1), "41.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(connection, "done"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(connection)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 412 ") {
		t.Errorf("the late one: %s (%v)", answer, err)
	}
	if p.content != "41.1" {
		t.Errorf("the content is %q", p.content)
	}
}

func TestConfigIsComplete(t *testing.T) {
	store := fence.NewGuard(1).Store()
	for _, c := range []httpfence.Config{
		{Name: byPath, Unstamped: httpfence.RefuseUnstamped},
		{Store: store, Unstamped: httpfence.RefuseUnstamped},
		{Store: store, Name: byPath},
		{Store: store, Name: byPath, Unstamped: 3},
		{Store: store, Name: byPath, Unstamped: httpfence.PassUnstamped, MaxBody: -1},
	} {
		if _, err := httpfence.New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransport(t *testing.T) {
	var got []string
	transport := httpfence.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		got = r.Header.Values(httpfence.Header)
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})}
	send := func(ctx context.Context) (*http.Request, error) {
		request, _ := http.NewRequestWithContext(ctx, http.MethodPut, "http://x/", nil)
		response, err := transport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return request, err
	}
	if request, err := send(fence.WithStamp(t.Context(), fencetest.Shared(41))); err != nil || len(got) != 1 || got[0] != "41.s" || len(request.Header) != 0 {
		t.Errorf("%v %v, and the caller's request has %v", got, err, request.Header)
	}
	if _, err := send(t.Context()); err != nil || got != nil {
		t.Errorf("without a stamp: %v %v", got, err)
	}
	got = []string{"nothing was sent"}
	if _, err := send(fence.WithStamp(t.Context(), fence.Stamp{Sequence: 1})); !errors.Is(err, fence.ErrInvalid) || got[0] != "nothing was sent" {
		t.Errorf("without a token: %v %v", got, err)
	}
}

// TestRedirectedWrite: a write that becomes a read is an error and no 200. One that stays a write is made, once.
func TestRedirectedWrite(t *testing.T) {
	for _, c := range []struct {
		status int
		want   error
		got    string // what came behind the redirect
	}{
		{301, httpfence.ErrRedirected, ""},
		{302, httpfence.ErrRedirected, ""},
		{303, nil, "GET 41.1"},
		{307, nil, "PUT 41.1"},
		{308, nil, "PUT 41.1"},
	} {
		got := ""
		mux := http.NewServeMux()
		mux.HandleFunc("/behind", func(_ http.ResponseWriter, r *http.Request) {
			got += r.Method + " " + r.Header.Get(httpfence.Header)
		})
		mux.Handle("/front", http.RedirectHandler("/behind", c.status))
		server := httptest.NewServer(mux)
		base := &http.Transport{}
		caller := &http.Client{Timeout: 20 * time.Second, Transport: httpfence.Transport{Base: base}}
		request, _ := http.NewRequestWithContext(fence.WithStamp(t.Context(), fencetest.Exclusive(41, 1)), http.MethodPut, server.URL+"/front", strings.NewReader("content"))
		response, err := caller.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if !errors.Is(err, c.want) || got != c.got {
			t.Errorf("%d: %v, and %q came", c.status, err, got)
		}
		base.CloseIdleConnections()
		server.Close()
	}
}

func TestRefusedReadsOnlyItsOwn(t *testing.T) {
	for _, c := range []struct {
		status     int
		mediaType  string
		body       string
		isRefusal  bool
		wantNewest fence.Stamp
	}{
		{412, "application/problem+json", `{"code":"stale_stamp","offered":{"token":33,"sequence":2},"newest":{"token":41}}`, true, fence.Stamp{Token: 41}},
		{412, "application/problem+json; charset=utf-8", `{"code":"stale_stamp","offered":{"token":33,"shared":true},"newest":{"token":41,"shared":true}}`, true, fencetest.Shared(41)},
		{200, "application/problem+json", `{"code":"stale_stamp","offered":{"token":33},"newest":{"token":41}}`, false, fence.Stamp{}},
		{412, "text/html", `<h1>ETag</h1>`, false, fence.Stamp{}},
		{412, "application/problem+json", `{"code":"other"}`, false, fence.Stamp{}},
		{412, "application/problem+json", `{"code":"stale_stamp"}`, false, fence.Stamp{}},
		{412, "application/problem+json", `{"code":"stale_stamp","offered":{"token":-1},"newest":{}}`, false, fence.Stamp{}},
		{412, "application/problem+json", strings.Repeat(" ", 1<<20), false, fence.Stamp{}},
	} {
		err := httpfence.Refused(&http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.mediaType}}, Body: io.NopCloser(strings.NewReader(c.body))})
		var stale *fence.StaleError
		if errors.As(err, &stale) != c.isRefusal || c.isRefusal && stale.Newest != c.wantNewest {
			t.Errorf("%d %s %.100s: %v", c.status, c.mediaType, c.body, err)
		}
	}
}
