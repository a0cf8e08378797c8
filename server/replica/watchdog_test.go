package replica

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// A16, C01: a write that hangs for four seconds ends the process, once; one that takes less does not.
func TestHangingWriteIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan string, 10)
		dog := newWatchdog(func(reason string) { fatal <- reason })
		defer dog.stop()
		if err := dog.guard("a slow write", func() error { <-time.After(3900 * time.Millisecond); return nil }); err != nil {
			t.Error(err)
		}
		if len(fatal) != 0 {
			t.Errorf("fatal after 3.9 s: %s", <-fatal)
		}
		began := time.Now()
		hang := make(chan struct{})
		returned := make(chan error)
		go func() { returned <- dog.guard("writing the log", func() error { <-hang; return nil }) }()
		reason := <-fatal
		if took := time.Since(began); took < 3900*time.Millisecond || took > 4100*time.Millisecond {
			t.Errorf("fatal after %v", took)
		}
		if !strings.Contains(reason, "writing the log") || !strings.Contains(reason, "4s") {
			t.Errorf("reason %q", reason)
		}
		<-time.After(10 * time.Second)
		if len(fatal) != 0 {
			t.Error("fatal twice")
		}
		close(hang)
		if err := <-returned; err != nil {
			t.Error(err)
		}
	})
}

// A process that was suspended in the middle of a write sees one tick for the whole pause.
func TestSuspensionIsNoSlowDisk(t *testing.T) {
	dog := &watchdog{writes: map[*write]struct{}{{what: "a write"}: {}}}
	for i := range watchdogTicks - 1 {
		if _, late := dog.tick(); late {
			t.Fatalf("late after %d ticks", i+1)
		}
	}
	if what, late := dog.tick(); !late || what != "a write" {
		t.Errorf("tick %d: %q, %v", watchdogTicks, what, late)
	}
	// The ticker holds one tick however long nobody reads.
	synctest.Test(t, func(t *testing.T) {
		ticker := time.NewTicker(watchdogTick)
		defer ticker.Stop()
		<-time.After(time.Hour)
		if n := len(ticker.C); n > 1 {
			t.Errorf("%d ticks are waiting", n)
		}
		<-ticker.C
		select {
		case <-ticker.C:
			t.Error("a second tick was waiting")
		default:
		}
	})
}

// failingStore is a disk that fails.
type failingStore struct {
	raft.LogStore
	broken *atomic.Bool
}

func (f failingStore) StoreLogs(entries []*raft.Log) error {
	if f.broken.Load() {
		return syscall.ENOSPC
	}
	return f.LogStore.StoreLogs(entries)
}

// C02, C03: a failed write is fatal, is never answered while the node can be heard, and leaves nothing behind at
// Shutdown. The others elect a leader.
func TestFailedWriteStopsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := map[string]*atomic.Bool{}
		c := newCluster(t, 3, func(c *Config) {
			flag := new(atomic.Bool)
			broken[c.ID] = flag
			c.wrapLogs = func(store raft.LogStore) raft.LogStore {
				guarded := store.(*logs)
				guarded.LogStore = failingStore{guarded.LogStore, flag}
				return guarded
			}
		})
		leader := c.form()
		broken[leader.config.ID].Store(true)
		pending := leader.Submit([]byte("lost"))
		reason := <-leader.fatal
		if !strings.Contains(reason, "writing the log failed") || !strings.Contains(reason, "no space left") {
			t.Errorf("reason %q", reason)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := pending.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the entry was answered before the node was stopped: %v", err)
		}
		if len(leader.fatal) != 0 {
			t.Error("fatal twice")
		}
		c.stop(leader)
		if _, err := pending.Wait(t.Context()); !errors.Is(err, ErrUnknown) {
			t.Errorf("the entry's outcome: %v", err)
		}
		c.submit(c.leader(), "on")
	})
}

// The stable store is guarded too; Raft would panic over its error.
func TestFailedVoteIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan string, 1)
		dog := newWatchdog(func(reason string) { fatal <- reason })
		database, err := openDatabase(t.TempDir(), true)
		if err != nil {
			t.Fatal(err)
		}
		if err := database.Close(); err != nil {
			t.Fatal(err)
		}
		store := &votes{StableStore: database, watchdog: dog}
		returned := make(chan error)
		go func() { returned <- store.SetUint64([]byte("CurrentTerm"), 5) }()
		if reason := <-fatal; !strings.Contains(reason, "term or vote") {
			t.Errorf("reason %q", reason)
		}
		select {
		case <-returned:
			t.Error("a failed write returned while the node can be heard")
		case <-time.After(time.Minute):
		}
		dog.stop()
		if err := <-returned; err != nil {
			t.Errorf("Raft would panic over %v", err)
		}
	})
}

// A log is cut without ever leaving a hole, and in pieces.
func TestLogIsCutWithoutHoles(t *testing.T) {
	dog := newWatchdog(func(reason string) { t.Error(reason) })
	defer dog.stop()
	const last = 3*deleteChunk + 10
	for _, c := range []struct {
		name        string
		from, to    uint64
		first, then uint64 // what is left
	}{
		{"beginning", 1, last - 5, last - 4, last},
		{"end", 5, last, 1, 4},
		{"all", 1, last, 0, 0},
		{"one", last, last, 1, last - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := raft.NewInmemStore()
			var entries []*raft.Log
			for i := range uint64(last) {
				entries = append(entries, &raft.Log{Index: i + 1, Term: 1})
			}
			if err := store.StoreLogs(entries); err != nil {
				t.Fatal(err)
			}
			watched := &cutWatch{InmemStore: store, t: t}
			if err := (&logs{LogStore: watched, watchdog: dog}).DeleteRange(c.from, c.to); err != nil {
				t.Fatal(err)
			}
			first, _ := store.FirstIndex()
			then, _ := store.LastIndex()
			if first != c.first || then != c.then {
				t.Errorf("left %d to %d, want %d to %d", first, then, c.first, c.then)
			}
		})
	}
}

// cutWatch is a store that looks for holes after every cut.
type cutWatch struct {
	*raft.InmemStore
	t *testing.T
}

func (c *cutWatch) DeleteRange(from, to uint64) error {
	if to-from >= deleteChunk {
		c.t.Errorf("%d entries in one transaction", to-from+1)
	}
	first, _ := c.FirstIndex()
	last, _ := c.LastIndex()
	if from != first && to != last {
		c.t.Errorf("cutting %d to %d out of %d to %d leaves a hole", from, to, first, last)
	}
	return c.InmemStore.DeleteRange(from, to)
}
