package replica

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// D1: without the guard the handler runs, on the connection's goroutine, and nothing arrives at the consumer.
func TestHeartbeatsGoThroughTheMainLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, nil)
		p.transport.SetHeartbeatHandler(func(rpc raft.RPC) {
			t.Error("a heartbeat was handled beside the main loop")
			rpc.Respond(&raft.AppendEntriesResponse{}, nil)
		})
		go func() {
			rpc := <-p.transport.Consumer()
			if request, ok := rpc.Command.(*raft.AppendEntriesRequest); !ok || request.Term != 7 {
				t.Errorf("the consumer got %#v", rpc.Command)
			}
			rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
		}()
		var response raft.AppendEntriesResponse
		if err := p.sender.AppendEntries("", p.address, &raft.AppendEntriesRequest{RPCHeader: p.header, Term: 7}, &response); err != nil || !response.Success {
			t.Errorf("heartbeat: %+v, %v", response, err)
		}
		p.close()
	})
}

// failingLogs refuses the next appends, between Raft and the fail-stop store.
type failingLogs struct {
	raft.LogStore
	failures *atomic.Int32
}

func (f failingLogs) IsMonotonic() bool { return true }

func (f failingLogs) StoreLogs(entries []*raft.Log) error {
	if f.failures.Add(-1) >= 0 {
		<-time.After(20 * time.Millisecond) // long enough for more messages to follow the refused one
		return errors.New("injected")
	}
	return f.LogStore.StoreLogs(entries)
}

// D3: with two messages in flight, one refused append leaves that follower without entries until the leader restarts
// (and the leader's Shutdown waits for the pipeline).
func TestRefusedAppendDoesNotWedgeTheFollower(t *testing.T) {
	for range 8 {
		synctest.Test(t, func(t *testing.T) {
			failures := map[string]*atomic.Int32{}
			c := newCluster(t, 3, func(c *Config) {
				count := new(atomic.Int32)
				failures[c.ID] = count
				c.wrapLogs = func(store raft.LogStore) raft.LogStore { return failingLogs{store, count} }
			})
			leader := c.form()
			c.converged()
			victim := c.others(leader)[0]
			failures[victim.config.ID].Store(1)
			var last *Pending
			for i := range 100 {
				last = leader.Submit(fmt.Appendf(nil, "%d", i))
				<-time.After(time.Millisecond)
			}
			if _, err := last.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.eventually("a refused append", func() bool { return failures[victim.config.ID].Load() < 1 })
			c.eventually("every entry at the follower that refused one", func() bool {
				return slices.Equal(victim.list.all(), leader.list.all())
			})
			c.stopAll()
		})
	}
}

func TestPipeliningIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, nil)
		if _, err := p.transport.AppendEntriesPipeline("", "n1:1/x"); !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
			t.Errorf("a pipeline: %v", err)
		}
		p.close()
	})
}

// crashing is a stable store that loses everything after so many writes.
type crashing struct {
	*raft.InmemStore
	writes int
}

func (c *crashing) Set(key, value []byte) error {
	if c.writes--; c.writes < 0 {
		return nil
	}
	return c.InmemStore.Set(key, value)
}

func (c *crashing) SetUint64(key []byte, value uint64) error {
	if c.writes--; c.writes < 0 {
		return nil
	}
	return c.InmemStore.SetUint64(key, value)
}

// D4: Raft writes the term of a vote and then its candidate. Wherever a crash comes, what is read afterwards is a whole
// vote: the old one or the new one. Without the guard one write leaves term 6 with the candidate of term 5.
func TestVoteIsNeverHalfWritten(t *testing.T) {
	vote := func(store raft.StableStore, term uint64, candidate string) {
		if err := store.SetUint64(keyVoteTerm, term); err != nil {
			t.Fatal(err)
		}
		if err := store.Set(keyVoteCandidate, []byte(candidate)); err != nil {
			t.Fatal(err)
		}
	}
	dog := newWatchdog(func(reason string) { t.Error(reason) })
	defer dog.stop()
	for writes := range 4 {
		disk := &crashing{InmemStore: raft.NewInmemStore(), writes: 100}
		vote(&votes{StableStore: disk, watchdog: dog}, 5, "first")
		disk.writes = writes
		vote(&votes{StableStore: disk, watchdog: dog}, 6, "second")
		reopened := &votes{StableStore: disk, watchdog: dog}
		term, err := reopened.GetUint64(keyVoteTerm)
		if err != nil {
			t.Fatal(err)
		}
		candidate, err := reopened.Get(keyVoteCandidate)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%d %s", term, candidate); got != "5 first" && got != "6 second" {
			t.Errorf("crash after %d writes: the vote is %s", writes, got)
		}
		if writes == 1 && string(candidate) != "second" {
			t.Error("a vote takes more than one write")
		}
	}
}

// Between the two calls a reader must see the last whole vote too: Raft asks while it writes.
func TestVoteInTheMakingIsNotVisible(t *testing.T) {
	dog := newWatchdog(func(reason string) { t.Error(reason) })
	defer dog.stop()
	database, err := openDatabase(t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = database.Close() }()
	store := &votes{StableStore: database, watchdog: dog}
	if _, err := store.GetUint64(keyVoteTerm); err == nil || err.Error() != "not found" {
		t.Errorf("no vote yet: %v", err) // the text is what Raft compares
	}
	if _, err := store.Get(keyVoteCandidate); err == nil || err.Error() != "not found" {
		t.Errorf("no vote yet: %v", err)
	}
	_ = store.SetUint64(keyVoteTerm, 3)
	_ = store.Set(keyVoteCandidate, []byte("a"))
	_ = store.SetUint64(keyVoteTerm, 4)
	if term, _ := store.GetUint64(keyVoteTerm); term != 3 {
		t.Errorf("term %d while the vote of term 4 is being written", term)
	}
	_ = store.SetUint64([]byte("CurrentTerm"), 9)
	if term, err := store.GetUint64([]byte("CurrentTerm")); err != nil || term != 9 {
		t.Errorf("current term %d, %v", term, err)
	}
}

// D5: v1.7.3 has no RestoreCommittedLogs. A version that has it must find it false in what Raft is given.
func TestCommittedLogsAreNotReplayedEarly(t *testing.T) {
	settings := Config{ID: "a"}.raftSettings(nil, hclog.NewNullLogger())
	field := reflect.ValueOf(settings).Elem().FieldByName("RestoreCommittedLogs")
	if field.IsValid() && field.Bool() {
		t.Error("RestoreCommittedLogs is set (D5)")
	}
	if settings.BatchApplyCh {
		t.Error("BatchApplyCh is set: a refused hand-off would prove nothing (R14)")
	}
	if settings.ShutdownOnRemove || settings.PreVoteDisabled || settings.NoSnapshotRestoreOnStart {
		t.Errorf("settings %+v", settings)
	}
}

// D6 and D2: nothing in the repository calls Restore or VerifyLeader on Raft, and only this package, the state
// machine's adapter and the stream layer know the library. So it is enough to look at the files that import it: there no method of these names may be
// called on anything but a state machine.
func TestForbiddenCallsAreNotMade(t *testing.T) {
	root := filepath.Join("..", "..")
	importers := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil // somebody is writing it; the compiler will say so
		}
		imports := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return strings.HasPrefix(strings.Trim(i.Path.Value, `"`), "github.com/hashicorp/raft")
		})
		if !imports {
			return nil
		}
		importers++
		if folder, _ := filepath.Rel(root, filepath.Dir(path)); !slices.Contains([]string{"server/replica", "fsm", "transport/peer"}, filepath.ToSlash(folder)) &&
			!strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s imports the Raft library", path)
		}
		if path == filepath.Join(root, "server", "replica", "unguarded.go") {
			return nil // in no build that people run: guarded_test.go
		}
		for _, found := range forbiddenCalls(file) {
			t.Errorf("%s: %s", files.Position(found.Pos()), found.Sel.Name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if importers == 0 {
		t.Error("no file imports the library: this test looks in the wrong place")
	}
	file, err := parser.ParseFile(token.NewFileSet(), "bad.go", "package p\nfunc f() { r.raft.Restore(m, b, 0); v := r.raft.VerifyLeader; m.FSM.Restore(f) }", 0)
	if err != nil || len(forbiddenCalls(file)) != 2 {
		t.Errorf("the check itself finds %v, %v", forbiddenCalls(file), err)
	}
}

// forbiddenCalls finds every mention of VerifyLeader, and of Restore unless with one argument or none: raft.Restore takes three, a
// state machine's one.
func forbiddenCalls(file *ast.File) (found []*ast.SelectorExpr) {
	allowed := map[*ast.SelectorExpr]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok && len(call.Args) <= 1 {
			if selector, ok := call.Fun.(*ast.SelectorExpr); ok && selector.Sel.Name == "Restore" {
				allowed[selector] = true
			}
		}
		if selector, ok := node.(*ast.SelectorExpr); ok && !allowed[selector] && (selector.Sel.Name == "Restore" || selector.Sel.Name == "VerifyLeader") {
			found = append(found, selector)
		}
		return true
	})
	return found
}

// D7: a follower that installs a snapshot keeps nothing of its older log. Without the guard Raft keeps TrailingLogs of
// it, with an uncommitted tail among them.
func TestInstalledSnapshotReplacesTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(c *Config) { c.Snapshots = SnapshotPolicy{Trailing: 20} })
		leader := c.form()
		behind := c.others(leader)[0]
		c.converged()
		c.network.isolate(behind.config.Address, true)
		for i := range 100 {
			c.submit(leader, fmt.Sprint(i))
		}
		if err := leader.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		old, err := behind.database.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		c.network.isolate(behind.config.Address, false)
		c.converged()
		first, err := behind.database.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		if first != 0 && first <= old {
			t.Errorf("the log still begins at %d, the old one ended at %d", first, old)
		}
		if behind.AppliedIndex() != leader.AppliedIndex() {
			t.Errorf("applied index %d, the leader's %d", behind.AppliedIndex(), leader.AppliedIndex())
		}
		c.submit(c.leader(), "on")
		c.converged()
		c.stopAll()
	})
}

func TestStoreIsMonotonicThroughTheCache(t *testing.T) {
	cache, err := raft.NewLogCache(logCacheSize, &logs{})
	if err != nil || !cache.IsMonotonic() {
		t.Errorf("cache %v, %v", cache, err)
	}
	if logCacheSize < 4*maxAppendEntries {
		t.Error("the cache is smaller than four batches")
	}
}

// raft#498: the place for the end of a future must be there in every kind of future that is waited for.
func TestFuturesCanBeEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		library := c.members[0].raft
		ended := make(chan struct{})
		close(ended)
		for name, future := range map[string]raft.Future{
			"entry":    library.Apply([]byte("x"), time.Second),
			"transfer": library.LeadershipTransfer(),
		} {
			value := reflect.ValueOf(future).Elem().FieldByName("ShutdownCh")
			if !endWith(future, ended) || value.IsNil() {
				t.Errorf("%s: not ended", name)
			}
		}
		c.stopAll()
		if future := library.Apply([]byte("x"), time.Second); endWith(future, ended) || !errors.Is(future.Error(), raft.ErrRaftShutdown) {
			t.Error("an answer that was ready counts as handed over")
		}
	})
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		handed bool
		want   []error
		not    error
	}{
		{"follower", raft.ErrNotLeader, true, []error{ErrNotApplied, ErrNotLeader}, ErrUnknown},
		{"handing over", raft.ErrLeadershipTransferInProgress, true, []error{ErrNotApplied, ErrTransferring}, ErrUnknown},
		{"busy", raft.ErrEnqueueTimeout, false, []error{ErrNotApplied, ErrBusy}, ErrUnknown},
		{"stopped before", raft.ErrRaftShutdown, false, []error{ErrNotApplied, ErrStopped}, ErrUnknown},
		{"stopped after", raft.ErrRaftShutdown, true, []error{ErrUnknown, ErrStopped}, ErrNotApplied},
		{"leadership lost", raft.ErrLeadershipLost, true, []error{ErrUnknown}, ErrNotApplied},
		{"restored", raft.ErrAbortedByRestore, true, []error{ErrUnknown}, ErrNotApplied},
		{"store", errors.New("unable to store logs within log store"), true, []error{ErrUnknown}, ErrNotApplied},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := classify(c.err, c.handed)
			for _, want := range c.want {
				if !errors.Is(got, want) {
					t.Errorf("%v is not %v", got, want)
				}
			}
			if errors.Is(got, c.not) {
				t.Errorf("%v is %v", got, c.not)
			}
		})
	}
}

// raft#696: only an answer for a hand-over that nobody has begun, or that ended long ago, stops the node.
func TestStuckTransferIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reason string
		w := &transfers{patience: time.Second, fatal: func(r string) { reason = r }}
		w.begin()
		<-time.After(3 * time.Second)
		w.observe(raft.ErrLeadershipTransferInProgress)
		w.end()
		<-time.After(time.Second)
		w.observe(raft.ErrLeadershipTransferInProgress)
		w.observe(raft.ErrNotLeader)
		if reason != "" {
			t.Errorf("fatal too early: %s", reason)
		}
		<-time.After(time.Millisecond)
		w.observe(nil)
		w.observe(raft.ErrNotLeader)
		if reason != "" {
			t.Errorf("fatal for nothing: %s", reason)
		}
		w.observe(raft.ErrLeadershipTransferInProgress)
		if reason == "" {
			t.Error("a stuck transfer goes unnoticed")
		}
	})
}

// C06: a listener that never listens does not keep Raft's main loop waiting, and what it hears in the end alternates and
// is true.
func TestLeadershipIsAlwaysRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes, heard, ended := make(chan bool), make(chan bool), make(chan struct{})
		go forwardLeadership(changes, heard, ended)
		for i := range 1001 {
			changes <- i%2 == 0 // blocks for ever if nobody reads
		}
		synctest.Wait()
		count, last := 0, false
		for open := true; open; {
			select {
			case change := <-heard:
				if change == last {
					t.Fatalf("two changes to %v", change)
				}
				count, last = count+1, change
				synctest.Wait()
			case <-time.After(time.Second):
				open = false
			}
		}
		if !last || count == 0 || count > leadershipBacklog {
			t.Errorf("%d changes heard, the last %v", count, last)
		}
		close(ended)
		if _, open := <-heard; open {
			t.Error("the channel stays open after the end")
		}
	})
}

func TestLeadershipSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		m := c.form()
		if change := <-m.Leadership(); !change {
			t.Error("the first change is a loss")
		}
		heard := m.Leadership()
		c.stopAll()
		for range heard { // ends when it is closed
		}
	})
}

func TestPendingEndsWithItsContext(t *testing.T) {
	p := &Pending{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("answer %v", err)
	}
	close(p.done)
	if _, err := p.Wait(ctx); err != nil {
		t.Errorf("an answer that is there gives way to the context: %v", err)
	}
}
