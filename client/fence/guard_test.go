package fence_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/pawl-lock/pawl/client/fence"
)

// TestPausedHolderIsRefused is what all of this is for.
func TestPausedHolderIsRefused(t *testing.T) {
	guard := fence.NewGuard(10)
	body := ""
	write := func(stamp fence.Stamp, text string) error {
		return guard.Do("report", stamp, func() error { body = text; return nil })
	}
	if err := write(exclusive(33, 1), "first"); err != nil {
		t.Fatal(err)
	}
	// The holder of 33 is paused here; 41 comes.
	if err := write(exclusive(41, 1), "second"); err != nil {
		t.Fatal(err)
	}
	err := write(exclusive(33, 2), "late")
	if !errors.Is(err, fence.ErrStale) || body != "second" {
		t.Errorf("the late write: %v, %q", err, body)
	}
	var stale *fence.StaleError
	if err := write(exclusive(41, 1), "again"); !errors.As(err, &stale) || !stale.Repeated() || body != "second" {
		t.Errorf("the repeated write: %v, %q", err, body)
	}
	if err := write(exclusive(0, 1), "no stamp"); !errors.Is(err, fence.ErrInvalid) || body != "second" {
		t.Errorf("without a token: %v, %q", err, body)
	}
	if newest := guard.Newest("report"); newest != exclusive(41, 1) {
		t.Errorf("the mark is %v", newest)
	}
}

// TestFailedWriteKeepsOldHoldersOut: its stamp may be used again, by nobody who is older.
func TestFailedWriteKeepsOldHoldersOut(t *testing.T) {
	guard := fence.NewGuard(10)
	broken := errors.New("broken")
	fail := func() error { return broken }
	if err := guard.Check("x", exclusive(33, 1)); err != nil {
		t.Fatal(err)
	}
	if err := guard.Do("x", exclusive(41, 2), fail); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if err := guard.Check("x", exclusive(33, 2)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an older holder after a failed write: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = guard.Do("x", exclusive(41, 3), func() error { panic("broken") })
	}()
	for _, sequence := range []uint64{2, 3} {
		if err := guard.Check("x", exclusive(41, sequence)); err != nil {
			t.Errorf("trying %d again: %v", sequence, err)
		}
	}
	if err := guard.Do("x", shared(50), fail); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if err := guard.Check("x", exclusive(50, 1)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an exclusive stamp with a shared period's token: %v", err)
	}
}

func TestGuardIsBounded(t *testing.T) {
	guard := fence.NewGuard(2)
	for _, name := range []string{"a", "b", "a"} {
		if err := guard.Check(name, shared(5)); err != nil {
			t.Fatal(err)
		}
	}
	if err := guard.Check("c", shared(5)); !errors.Is(err, fence.ErrFull) {
		t.Errorf("a third name: %v", err)
	}
	if newest := guard.Newest("c"); newest != (fence.Stamp{}) {
		t.Errorf("an unknown name has seen %v", newest)
	}
	guard = fence.NewGuard(1)
	if err := guard.Check("bad", fence.Stamp{}); !errors.Is(err, fence.ErrInvalid) {
		t.Fatal(err)
	}
	if err := guard.Check("good", shared(5)); err != nil {
		t.Errorf("an invalid stamp took up a name: %v", err)
	}
}

// TestMarkNeverGoesBack races many writers; the resource itself sees stamps that only go up.
func TestMarkNeverGoesBack(t *testing.T) {
	guard := fence.NewGuard(10)
	var newest fence.Stamp // guarded by the guard
	taken := 0
	var group sync.WaitGroup
	for writer := range 16 {
		group.Go(func() {
			for i := range uint64(500) {
				stamp := exclusive(1+i/10+uint64(writer%4), 1+i%10)
				if writer%5 == 0 {
					stamp = shared(stamp.Token)
				}
				err := guard.Do("x", stamp, func() error {
					if stamp.Allowed(newest) != nil {
						t.Errorf("%v was let in after %v", stamp, newest)
					}
					if stamp.Above(newest) {
						newest = stamp
					}
					taken++
					return nil
				})
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if now := guard.Newest("x"); now != newest || taken == 0 || taken == 16*500 {
		t.Errorf("the mark is %v, the newest write %v; %d of %d were taken", now, newest, taken, 16*500)
	}
}
