package objectfence_test

import (
	"crypto/md5"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client/fence/objectfence"
)

// store is an object store that behaves as S3 does: conditions are compared with what is there, a
// write that is going on makes others conflict (409), a match without an object is 404, ETags are
// the MD5 of the content.
type store struct {
	counted bool // every write gives another ETag, as elsewhere
	ignores bool // takes conditions and does not look at them
	// Called before the condition is looked at, and after the write: 0 goes on, another number is
	// answered instead, and cut breaks the connection.
	before, after func(*http.Request) int

	mu      sync.Mutex
	objects map[string]object
	writing map[string]bool
	writes  int
	answers map[int]int // to PUTs, by status
}

type object struct {
	content []byte
	etag    string
	mark    string
}

const cut = -1

func newStore() *store {
	return &store{objects: map[string]object{}, writing: map[string]bool{}, answers: map[int]int{}}
}

func (s *store) serve(t *testing.T) objectfence.HTTP {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(client.CloseIdleConnections)
	return objectfence.HTTP{URL: server.URL, Client: client}
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodHead, http.MethodGet:
		s.mu.Lock()
		o, found := s.objects[r.URL.Path]
		s.mu.Unlock()
		if !found {
			http.Error(w, "NoSuchKey", http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", o.etag)
		if o.mark != "" {
			w.Header().Set(objectfence.MarkHeader, o.mark)
		}
		_, _ = w.Write(o.content)
	case http.MethodPut:
		status := s.put(r)
		s.mu.Lock()
		s.answers[status]++
		s.mu.Unlock()
		if status == cut {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *store) put(r *http.Request) int {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest
	}
	if s.before != nil {
		if status := s.before(r); status != 0 {
			return status
		}
	}
	s.mu.Lock()
	if status := s.conditionLocked(r); status != 0 && !s.ignores {
		s.mu.Unlock()
		return status
	}
	if s.writing[r.URL.Path] {
		s.mu.Unlock()
		return http.StatusConflict // ConditionalRequestConflict
	}
	s.writing[r.URL.Path] = true
	s.mu.Unlock()
	time.Sleep(rand.N(300 * time.Microsecond)) // others really come in the middle
	s.mu.Lock()
	s.writes++
	o := object{content: content, mark: r.Header.Get(objectfence.MarkHeader), etag: fmt.Sprintf(`"%x"`, md5.Sum(content))}
	if s.counted {
		o.etag = fmt.Sprintf(`"%d"`, s.writes)
	}
	s.objects[r.URL.Path] = o
	delete(s.writing, r.URL.Path)
	s.mu.Unlock()
	if s.after != nil {
		if status := s.after(r); status != 0 {
			return status
		}
	}
	return http.StatusOK
}

func (s *store) conditionLocked(r *http.Request) int {
	o, found := s.objects[r.URL.Path]
	match := r.Header.Get("If-Match")
	switch {
	case match == "" && r.Header.Get("If-None-Match") != "*":
		return http.StatusForbidden // a bucket policy can demand conditions
	case match == "" && found, match != "" && found && match != o.etag:
		return http.StatusPreconditionFailed
	case match != "" && !found:
		return http.StatusNotFound
	}
	return 0
}
