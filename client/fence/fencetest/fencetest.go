// Package fencetest tests a fencing kit against its real storage: what every kit must refuse, and
// what must stay true when many write at once. It is for the tests of kits.
package fencetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
)

// Resource is one fresh resource behind a kit.
type Resource struct {
	// Write replaces the content under the stamp. It is called concurrently.
	Write func(ctx context.Context, stamp fence.Stamp, content string) error
	// Read gives content and mark of one moment; "" and zero before the first write.
	Read func(ctx context.Context) (content string, mark fence.Stamp, err error)
}

// Run runs all tests, each on a resource of its own. Racing writes are rounds times 8.
func Run(t *testing.T, rounds int, fresh func(t *testing.T) Resource) {
	t.Run("SuspendedHolder", func(t *testing.T) { suspendedHolder(t, fresh(t)) })
	t.Run("SharedHolders", func(t *testing.T) { sharedHolders(t, fresh(t)) })
	t.Run("Invalid", func(t *testing.T) { invalid(t, fresh(t)) })
	t.Run("Race", func(t *testing.T) { race(t, fresh(t), rounds) })
	t.Run("SameStampRaces", func(t *testing.T) { sameStampRaces(t, fresh(t)) })
}

// Exclusive and Shared make stamps.
func Exclusive(token, sequence uint64) fence.Stamp {
	return fence.Stamp{Token: token, Sequence: sequence}
}

// Shared makes the stamp of a shared holder.
func Shared(token uint64) fence.Stamp { return fence.Stamp{Token: token, Shared: true} }

// Expect demands content and mark. The content is the text of the stamp that wrote it.
func Expect(t *testing.T, r Resource, want fence.Stamp) {
	t.Helper()
	content, mark, err := r.Read(t.Context())
	if err != nil || content != want.String() || mark != want {
		t.Errorf("there is %q with mark %v (%v), want %v", content, mark, err, want)
	}
}

// Refused demands a *StaleError with these stamps.
func Refused(t *testing.T, err error, offered, newest fence.Stamp) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Offered != offered || stale.Newest != newest {
		t.Errorf("writing with %v over %v: %v", offered, newest, err)
	}
}

func write(t *testing.T, r Resource, stamp fence.Stamp) {
	t.Helper()
	if err := r.Write(t.Context(), stamp, stamp.String()); err != nil {
		t.Fatalf("writing with %v: %v", stamp, err)
	}
}

// suspendedHolder is what all of this is for.
func suspendedHolder(t *testing.T, r Resource) {
	suspended, woken := make(chan bool), make(chan bool)
	late := make(chan error, 2)
	go func() { // the first holder
		late <- r.Write(t.Context(), Exclusive(33, 1), "33.1")
		close(suspended)
		<-woken
		late <- r.Write(t.Context(), Exclusive(33, 2), "33.2")
	}()
	<-suspended
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	Expect(t, r, Exclusive(33, 1))
	write(t, r, Exclusive(41, 1)) // the second
	close(woken)
	Refused(t, <-late, Exclusive(33, 2), Exclusive(41, 1))
	Expect(t, r, Exclusive(41, 1))

	err := r.Write(t.Context(), Exclusive(41, 1), "repeated")
	Refused(t, err, Exclusive(41, 1), Exclusive(41, 1))
	var stale *fence.StaleError
	if errors.As(err, &stale) && !stale.Repeated() {
		t.Errorf("a repeated write is not said to be one: %v", err)
	}
	write(t, r, Exclusive(41, 3))
	Refused(t, r.Write(t.Context(), Exclusive(41, 2), "overtaken"), Exclusive(41, 2), Exclusive(41, 3))
	Expect(t, r, Exclusive(41, 3))

	// Numbers are compared as numbers: as text, 9 is above 10. And what a float cannot tell apart
	// is told apart.
	write(t, r, Exclusive(99, 9))
	write(t, r, Exclusive(99, 10))
	write(t, r, Exclusive(100, 1))
	Refused(t, r.Write(t.Context(), Exclusive(99, 11), "late"), Exclusive(99, 11), Exclusive(100, 1))
	const largest = 1<<53 - 1
	write(t, r, Exclusive(largest-1, 5))
	write(t, r, Exclusive(largest, fence.MaxSequence-1))
	Refused(t, r.Write(t.Context(), Exclusive(largest-1, 6), "late"), Exclusive(largest-1, 6), Exclusive(largest, fence.MaxSequence-1))
	write(t, r, Exclusive(largest, fence.MaxSequence))
	Expect(t, r, Exclusive(largest, fence.MaxSequence))
}

func sharedHolders(t *testing.T, r Resource) {
	write(t, r, Exclusive(50, 3))
	write(t, r, Shared(51))
	write(t, r, Shared(51)) // another one of the same period, or the same one again
	Expect(t, r, Shared(51))
	Refused(t, r.Write(t.Context(), Shared(50), "late"), Shared(50), Shared(51))
	Refused(t, r.Write(t.Context(), Exclusive(51, 1), "not theirs"), Exclusive(51, 1), Shared(51))
	write(t, r, Exclusive(52, 1))
	Refused(t, r.Write(t.Context(), Shared(51), "late"), Shared(51), Exclusive(52, 1))
	Expect(t, r, Exclusive(52, 1))
}

func invalid(t *testing.T, r Resource) {
	for _, stamp := range []fence.Stamp{{}, {Token: 5}, {Sequence: 5}, {Token: 5, Sequence: 1, Shared: true}, {Token: 1 << 53, Sequence: 1}} {
		if err := r.Write(t.Context(), stamp, "invalid"); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrStale) {
			t.Errorf("writing with %#v: %v", stamp, err)
		}
	}
	if content, mark, err := r.Read(t.Context()); content != "" || mark != (fence.Stamp{}) || err != nil {
		t.Errorf("after nothing but invalid writes there is %q with mark %v (%v)", content, mark, err)
	}
}

// race has eight holders write at once while somebody watches: content and mark belong together at
// every moment, and the mark never goes back. The largest stamp of all is always allowed, so it
// must be there in the end.
func race(t *testing.T, r Resource, rounds int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var largest fence.Stamp
	var mu sync.Mutex
	var holders, watcher sync.WaitGroup
	allowed := 0
	for holder := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, holder))
		holders.Go(func() {
			for range rounds {
				// One holder in eight of each token, so that no stamp is offered twice.
				stamp := Exclusive(1+8*random.Uint64N(uint64(rounds))+holder, 1+random.Uint64N(1000))
				if random.IntN(8) == 0 {
					stamp = Shared(1000*uint64(rounds) + random.Uint64N(4))
				}
				err := r.Write(ctx, stamp, stamp.String())
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Errorf("writing with %v: %v", stamp, err)
				}
				mu.Lock()
				if err == nil {
					allowed++
				}
				if stamp.Above(largest) {
					largest = stamp
				}
				mu.Unlock()
				if random.IntN(4) == 0 { // somebody newer than all of the past
					mu.Lock()
					largest = Exclusive(largest.Token+1+random.Uint64N(3), 1)
					next := largest
					mu.Unlock()
					if err := r.Write(ctx, next, next.String()); err != nil && !errors.Is(err, fence.ErrStale) {
						t.Errorf("writing with %v: %v", next, err)
					}
				}
			}
		})
	}
	stop := make(chan bool)
	watcher.Go(func() {
		var seen fence.Stamp
		for {
			content, mark, err := r.Read(ctx)
			switch {
			case err != nil:
				t.Errorf("reading: %v", err)
			case mark == fence.Stamp{}: // nothing yet
			case content != mark.String():
				t.Errorf("content %q stands with mark %v", content, mark)
			case seen.Above(mark):
				t.Errorf("the mark went back from %v to %v", seen, mark)
			default:
				seen = mark
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	holders.Wait()
	close(stop)
	watcher.Wait()
	Expect(t, r, largest)
	if allowed == 0 {
		t.Error("no write was allowed")
	}
}

// sameStampRaces: of eight writes with one stamp, one is done.
func sameStampRaces(t *testing.T, r Resource) {
	for sequence := range uint64(10) {
		var group sync.WaitGroup
		results := make(chan error, 8)
		for range cap(results) {
			group.Go(func() { results <- r.Write(t.Context(), Exclusive(7, sequence+1), Exclusive(7, sequence+1).String()) })
		}
		group.Wait()
		close(results)
		done := 0
		for err := range results {
			if err == nil {
				done++
				continue
			}
			Refused(t, err, Exclusive(7, sequence+1), Exclusive(7, sequence+1))
		}
		if done != 1 {
			t.Errorf("a write was done %d times", done)
		}
	}
}
