package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
)

// storeQuestion and storeAnswer are what processes that share a Store say to each other.
type storeQuestion struct {
	Names  []string      `json:"names"`
	Stamps []fence.Stamp `json:"stamps,omitempty"`
	Rows   [][]int64     `json:"rows,omitempty"`
}

type storeAnswer struct {
	Rows      [][]int64 `json:"rows,omitempty"`
	Error     string    `json:"error,omitempty"`
	Stale     bool      `json:"stale,omitempty"`
	Unwritten bool      `json:"unwritten,omitempty"`
}

const (
	mostQuestion = 1 << 20 // bytes of either
	storeLimit   = 10 * time.Second
)

// Serve has other processes use a Store through Remote, until the listener is closed. A write whose caller is stopped while
// it is under way arrives all the same.
func Serve(listener net.Listener, store Store) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /read", serveStore(func(ctx context.Context, q storeQuestion) (a storeAnswer, err error) {
		a.Rows, err = store.Read(ctx, q.Names, q.Stamps)
		return a, err
	}))
	mux.HandleFunc("POST /write", serveStore(func(ctx context.Context, q storeQuestion) (storeAnswer, error) {
		return storeAnswer{}, store.Write(ctx, q.Names, q.Stamps, q.Rows)
	}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: storeLimit}
	err := server.Serve(listener)
	_ = server.Close()
	return err
}

func serveStore(do func(context.Context, storeQuestion) (storeAnswer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q storeQuestion
		if err := json.NewDecoder(io.LimitReader(r.Body, mostQuestion)).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a, err := do(context.WithoutCancel(r.Context()), q)
		if err != nil {
			a.Error, a.Stale, a.Unwritten = err.Error(), errors.Is(err, fence.ErrStale), errors.Is(err, ErrUnwritten)
		}
		_ = json.NewEncoder(w).Encode(a) // who is gone learns nothing
	}
}

type remote struct{ client *http.Client }

// NewRemote is the Store that another process serves at a Unix socket.
func NewRemote(socket string) Store {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return remote{&http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (r remote) Read(ctx context.Context, names []string, stamps []fence.Stamp) ([][]int64, error) {
	a, err := r.ask(ctx, "read", storeQuestion{Names: names, Stamps: stamps})
	if err == nil && len(a.Rows) != len(names) {
		return nil, fmt.Errorf("%d rows for %d names", len(a.Rows), len(names))
	}
	return a.Rows, err
}

func (r remote) Write(ctx context.Context, names []string, stamps []fence.Stamp, rows [][]int64) error {
	_, err := r.ask(ctx, "write", storeQuestion{names, stamps, rows})
	return err
}

func (r remote) ask(ctx context.Context, path string, q storeQuestion) (a storeAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	body, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://store/"+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the store answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 2*mostQuestion)).Decode(&a); err != nil {
		return a, err
	}
	switch {
	case a.Stale:
		return a, fmt.Errorf("%w: %s", fence.ErrStale, a.Error)
	case a.Unwritten:
		return a, fmt.Errorf("%w: %s", ErrUnwritten, a.Error)
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (r remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}
