package objectfence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/objectfence"
)

func resource(o objectfence.Objects) fencetest.Resource {
	return fencetest.Resource{
		Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
			return o.Write(ctx, "report/today", stamp, []byte(content))
		},
		Read: func(ctx context.Context) (string, fence.Stamp, error) {
			content, mark, err := o.Read(ctx, "report/today")
			if errors.Is(err, objectfence.ErrNotFound) {
				err = nil
			}
			return string(content), mark, err
		},
	}
}

func TestKit(t *testing.T) {
	for name, plain := range map[string]bool{"FirstLine": false, "Plain": true} {
		t.Run(name, func(t *testing.T) {
			conflicts, refusals := 0, 0
			fencetest.Run(t, 15, func(t *testing.T) fencetest.Resource {
				s := newStore()
				s.counted = plain
				t.Cleanup(func() {
					conflicts += s.answers[http.StatusConflict]
					refusals += s.answers[http.StatusPreconditionFailed]
				})
				return resource(objectfence.Objects{Bucket: s.serve(t), Plain: plain})
			})
			t.Logf("the store answered %d times 409, %d times 412", conflicts, refusals)
			if conflicts == 0 || refusals == 0 {
				t.Error("without conflicts nothing was raced")
			}
		})
	}
}

// The same against a store that loses answers, before and after writing.
func TestKitWithLostAnswers(t *testing.T) {
	fencetest.Run(t, 10, func(t *testing.T) fencetest.Resource {
		s := newStore()
		fail := func(*http.Request) int {
			switch rand.IntN(12) {
			case 0:
				return cut
			case 1:
				return http.StatusServiceUnavailable
			case 2:
				return http.StatusInternalServerError
			}
			return 0
		}
		s.before, s.after = fail, fail
		r := resource(objectfence.Objects{Bucket: s.serve(t)})
		write := r.Write
		r.Write = func(ctx context.Context, stamp fence.Stamp, content string) error {
			for {
				err := write(ctx, stamp, content)
				if !stamp.Shared || !errors.Is(err, objectfence.ErrUnknown) || errors.Is(err, fence.ErrStale) {
					return err
				}
				// Shared stamps have no number to be looked for. Here all of a period write the
				// same.
			}
		}
		return r
	})
}

// slow is a client that is suspended between comparing and writing.
type slow struct {
	objectfence.Bucket
	compared chan bool // closed when it has compared
	woken    chan bool
	once     sync.Once
}

func (s *slow) Put(ctx context.Context, key string, content []byte, mark, match string) error {
	s.once.Do(func() {
		close(s.compared)
		<-s.woken
	})
	return s.Bucket.Put(ctx, key, content, mark, match)
}

// TestSuspendedBetweenComparingAndWriting: the new holder writes the very content that was there.
// S3's ETag does not change then, so without a first line the late write is taken and the mark goes
// back.
func TestSuspendedBetweenComparingAndWriting(t *testing.T) {
	for _, c := range []struct {
		name           string
		counted, plain bool
		taken          bool
	}{
		{"first line, ETag of the content", false, false, false},
		{"first line, ETag of the write", true, false, false},
		{"plain, ETag of the write", true, true, false},
		{"plain, ETag of the content: what Plain must not be used for", false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore()
			s.counted = c.counted
			bucket := s.serve(t)
			objects := objectfence.Objects{Bucket: bucket, Plain: c.plain}
			if err := objects.Write(t.Context(), "key", fencetest.Exclusive(33, 1), []byte("same")); err != nil {
				t.Fatal(err)
			}
			suspended := &slow{Bucket: bucket, compared: make(chan bool), woken: make(chan bool)}
			late := make(chan error)
			go func() {
				o := objectfence.Objects{Bucket: suspended, Plain: c.plain}
				late <- o.Write(context.WithoutCancel(t.Context()), "key", fencetest.Exclusive(33, 2), []byte("late"))
			}()
			<-suspended.compared
			if err := objects.Write(t.Context(), "key", fencetest.Exclusive(41, 1), []byte("same")); err != nil {
				t.Fatal(err)
			}
			close(suspended.woken)
			err := <-late
			content, mark, reading := objects.Read(t.Context(), "key")
			if reading != nil {
				t.Fatal(reading)
			}
			if c.taken {
				if err != nil || mark != fencetest.Exclusive(33, 2) {
					t.Errorf("it was refused (%v), so Plain is safer than its documentation says", err)
				}
				return
			}
			fencetest.Refused(t, err, fencetest.Exclusive(33, 2), fencetest.Exclusive(41, 1))
			if string(content) != "same" || mark != fencetest.Exclusive(41, 1) {
				t.Errorf("there is %q with mark %v", content, mark)
			}
		})
	}
}

// TestLostAnswer: an answer that was lost is looked for; only where others came between is the
// outcome unknown.
func TestLostAnswer(t *testing.T) {
	s := newStore()
	bucket := s.serve(t)
	objects := objectfence.Objects{Bucket: bucket}
	write := func(stamp fence.Stamp) error {
		return objects.Write(t.Context(), "key", stamp, []byte(stamp.String()))
	}
	if err := write(fencetest.Exclusive(33, 1)); err != nil {
		t.Fatal(err)
	}
	once := func(then func()) func(*http.Request) int {
		done := false
		return func(*http.Request) int {
			if done {
				return 0
			}
			done = true
			if then != nil {
				then()
			}
			return cut
		}
	}
	s.after = once(nil)
	before := s.writes
	if err := write(fencetest.Exclusive(33, 2)); err != nil || s.writes != before+1 {
		t.Errorf("%d writes, %v", s.writes-before, err)
	}
	s.after, s.before = nil, once(nil)
	if err := write(fencetest.Exclusive(33, 3)); err != nil || s.writes != before+2 {
		t.Errorf("%d writes, %v", s.writes-before, err)
	}
	// A newer holder has overwritten it: refused, and perhaps done in time.
	s.before, s.after = nil, once(func() {
		s.after = nil
		if err := write(fencetest.Exclusive(41, 1)); err != nil {
			t.Error(err)
		}
	})
	if err := write(fencetest.Exclusive(33, 4)); !errors.Is(err, fence.ErrStale) || !errors.Is(err, objectfence.ErrUnknown) {
		t.Errorf("overwritten by a newer holder: %v", err)
	}
	// Another of the same shared period has: it must not be overwritten by a write that may be
	// older.
	s.after = once(func() {
		s.after = nil
		if err := objects.Write(t.Context(), "key", fencetest.Shared(50), []byte("another's")); err != nil {
			t.Error(err)
		}
	})
	if err := write(fencetest.Shared(50)); !errors.Is(err, objectfence.ErrUnknown) || errors.Is(err, fence.ErrStale) {
		t.Errorf("overwritten by another of the period: %v", err)
	}
	if content, mark, err := objects.Read(t.Context(), "key"); string(content) != "another's" || mark != fencetest.Shared(50) || err != nil {
		t.Errorf("%q %v %v", content, mark, err)
	}
	s.after = nil
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	s.before = func(*http.Request) int {
		if tries++; tries == 3 {
			cancel()
		}
		return http.StatusServiceUnavailable
	}
	if err := objects.Write(ctx, "key", fencetest.Exclusive(60, 1), nil); !errors.Is(err, objectfence.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("a store that fails until the context ends: %v", err)
	}
}

func TestBoundsAndRefusals(t *testing.T) {
	s := newStore()
	bucket := s.serve(t)
	objects := objectfence.Objects{Bucket: bucket}
	tries, status := 0, http.StatusForbidden
	s.before = func(*http.Request) int { tries++; return status }
	if err := objects.Write(t.Context(), "key", fencetest.Exclusive(5, 1), nil); err == nil || errors.Is(err, objectfence.ErrUnknown) || tries != 1 {
		t.Errorf("a store that forbids: %v after %d attempts", err, tries)
	}
	if err := objects.Write(t.Context(), "", fencetest.Exclusive(5, 1), nil); err == nil {
		t.Error("an empty key was taken")
	}
	s.before = nil
	// What this package has not written is refused, unless adopted.
	for _, mark := range []string{"", "41", "x 1"} {
		s.objects["/key"] = object{content: []byte("theirs"), etag: `"1"`, mark: mark}
		if err := objects.Write(t.Context(), "key", fencetest.Exclusive(99, 1), nil); !errors.Is(err, objectfence.ErrUnmarked) {
			t.Errorf("writing over the mark %q: %v", mark, err)
		}
		if _, _, err := objects.Read(t.Context(), "key"); !errors.Is(err, objectfence.ErrUnmarked) {
			t.Errorf("reading with the mark %q: %v", mark, err)
		}
	}
	adopting := objectfence.Objects{Bucket: bucket, Adopt: true}
	if err := adopting.Write(t.Context(), "key", fencetest.Exclusive(99, 1), nil); !errors.Is(err, objectfence.ErrUnmarked) {
		t.Errorf("adopting what has a strange mark: %v", err)
	}
	s.objects["/key"] = object{content: []byte("theirs"), etag: `"1"`}
	if content, mark, err := adopting.Read(t.Context(), "key"); string(content) != "theirs" || mark != (fence.Stamp{}) || err != nil {
		t.Errorf("%q %v %v", content, mark, err)
	}
	if err := adopting.Write(t.Context(), "key", fencetest.Exclusive(99, 1), []byte("ours")); err != nil {
		t.Error(err)
	}
	if content, mark, err := objects.Read(t.Context(), "key"); string(content) != "ours" || mark != fencetest.Exclusive(99, 1) || err != nil {
		t.Errorf("%q %v %v", content, mark, err)
	}
	// Metadata of one write with the content of another.
	o := s.objects["/key"]
	o.mark = "41.1 other"
	s.objects["/key"] = o
	if _, _, err := objects.Read(t.Context(), "key"); !errors.Is(err, objectfence.ErrUnmarked) {
		t.Errorf("content and metadata of different writes: %v", err)
	}
	o.etag = `W/"1"`
	s.objects["/key"] = o
	if err := objects.Write(t.Context(), "key", fencetest.Exclusive(99, 2), nil); err == nil || !strings.Contains(err.Error(), "ETag") {
		t.Errorf("with a weak ETag: %v", err)
	}
	// An object that is deleted between comparing and writing; keys are escaped.
	delete(s.objects, "/key")
	strange := "a b/ü?x=1#%41"
	if err := objects.Write(t.Context(), strange, fencetest.Exclusive(5, 1), nil); err != nil {
		t.Fatal(err)
	}
	if _, found := s.objects["/"+strange]; !found {
		t.Error("the key came differently")
	}
	deleted := false
	s.before = func(*http.Request) int {
		if !deleted {
			deleted = true
			s.mu.Lock()
			delete(s.objects, "/"+strange)
			s.mu.Unlock()
		}
		return 0
	}
	if err := objects.Write(t.Context(), strange, fencetest.Exclusive(5, 2), nil); err != nil || s.answers[http.StatusNotFound] != 1 {
		t.Errorf("an object that was deleted: %v", err)
	}
}

// TestRedirectedWriteIsNone: a front door that sends http to https makes a GET of a PUT, and the answer to that is 200.
func TestRedirectedWriteIsNone(t *testing.T) {
	s := newStore()
	behind := s.serve(t)
	objects := objectfence.Objects{Bucket: behind}
	if err := objects.Write(t.Context(), "key", fencetest.Exclusive(5, 1), []byte("old")); err != nil {
		t.Fatal(err)
	}
	writes := s.writes
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, method := range []string{"all", http.MethodPut} { // or only writes are redirected
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if method == "all" || r.Method == method {
					http.Redirect(w, r, behind.URL+r.URL.Path, status)
					return
				}
				s.ServeHTTP(w, r)
			}))
			redirected := objectfence.HTTP{URL: front.URL, Client: &http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return nil }}}
			err := objectfence.Objects{Bucket: redirected}.Write(t.Context(), "key", fencetest.Exclusive(9, uint64(status)), []byte("new"))
			if err == nil || errors.Is(err, objectfence.ErrUnknown) || !strings.Contains(err.Error(), behind.URL) {
				t.Errorf("%d for %s: the write gave %v", status, method, err)
			}
			if err := redirected.Put(t.Context(), "key", nil, "9.1 x", ""); err == nil {
				t.Errorf("%d for %s: a PUT was confirmed", status, method)
			}
			redirected.Client.CloseIdleConnections()
			front.Close()
		}
	}
	if content, mark, err := objects.Read(t.Context(), "key"); string(content) != "old" || mark != fencetest.Exclusive(5, 1) || err != nil || s.writes != writes {
		t.Errorf("there is %q with mark %v (%v) after %d writes", content, mark, err, s.writes-writes)
	}
}

func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name             string
		counted, ignores bool
		plain            bool
		err              error
	}{
		{"ETag of the content", false, false, false, nil},
		{"ETag of the write", true, false, true, nil},
		{"ignores conditions", false, true, false, objectfence.ErrNotConditional},
	} {
		s := newStore()
		s.counted, s.ignores = c.counted, c.ignores
		bucket := s.serve(t)
		for range 2 { // without an object at first, then with one
			if plain, err := objectfence.Probe(t.Context(), bucket, "probe"); plain != c.plain || !errors.Is(err, c.err) {
				t.Errorf("%s: %t %v", c.name, plain, err)
			}
		}
	}
}
