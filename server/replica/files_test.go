package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// makeDatabase writes a log that takes several levels of pages.
func makeDatabase(t *testing.T, dir string) string {
	t.Helper()
	store, err := openDatabase(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	for batch := range uint64(20) {
		var entries []*raft.Log
		for i := range uint64(200) {
			entries = append(entries, &raft.Log{Index: batch*200 + i + 1, Term: 1, Data: make([]byte, 150)})
		}
		if err := store.StoreLogs(entries); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.DeleteRange(1, 1000); err != nil {
		t.Fatal(err)
	}
	if err := store.Set([]byte("big"), make([]byte, 20000)); err != nil { // takes overflow pages
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, databaseName)
}

// C19: every damage is refused with the path and the repair, without a panic or fault.
func TestDamagedDatabaseIsRefused(t *testing.T) {
	zero := func(t *testing.T, path string, from, pages int64) {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(make([]byte, pages*4096), from*4096); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	truncate := func(t *testing.T, path string, size int64) {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string, size int64)
	}{
		{"missing", func(t *testing.T, path string, _ int64) { _ = os.Remove(path) }},
		{"empty", func(t *testing.T, path string, _ int64) { truncate(t, path, 0) }},
		{"one page", func(t *testing.T, path string, _ int64) { truncate(t, path, 4096) }},
		{"two pages", func(t *testing.T, path string, _ int64) { truncate(t, path, 8192) }},
		{"half of the used pages", func(t *testing.T, path string, size int64) { truncate(t, path, 100*4096) }},
		{"first pages zero", func(t *testing.T, path string, _ int64) { zero(t, path, 2, 200) }},
		{"both metas zero", func(t *testing.T, path string, _ int64) { zero(t, path, 0, 2) }},
		{"both metas flipped", func(t *testing.T, path string, _ int64) { flip(t, path, 16+20); flip(t, path, 4096+16+20) }},
		{"text", func(t *testing.T, path string, _ int64) {
			_ = os.WriteFile(path, []byte(strings.Repeat("this is no log store\n", 2000)), 0o600)
		}},
		{"10 TB sparse", func(t *testing.T, path string, _ int64) { truncate(t, path, 10<<40) }},
		{"all zero", func(t *testing.T, path string, size int64) { zero(t, path, 0, size/4096) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := makeDatabase(t, dir)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			c.damage(t, path, info.Size())
			store, err := openDatabase(dir, false)
			if err == nil {
				_ = store.Close()
				t.Fatal("opened")
			}
			for _, want := range []string{path, "remove this node from the cluster, wipe the directory, add it again"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%v is not ErrDamaged", err)
			}
		})
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	b := make([]byte, 1)
	if _, err := file.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := file.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// Each page alone: zeroed, it is refused, or it was not in use and everything can still be read.
func TestEveryZeroedPageIsSeenOrUnused(t *testing.T) {
	dir := t.TempDir()
	whole, err := os.ReadFile(makeDatabase(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for page := 2; page < len(whole)/4096; page += 31 {
		path := filepath.Join(t.TempDir(), databaseName)
		hurt := slices.Clone(whole)
		clear(hurt[page*4096 : (page+1)*4096])
		if err := os.WriteFile(path, hurt, 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := openDatabase(filepath.Dir(path), false)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("page %d: %v", page, err)
			}
			refused++
			continue
		}
		readAll(t, store)
		_ = store.Close()
	}
	if refused == 0 {
		t.Error("no page was missed")
	}
	t.Logf("%d of %d pages refused", refused, len(whole)/4096/31)
}

func readAll(t *testing.T, store *raftboltdb.BoltStore) {
	t.Helper()
	first, _ := store.FirstIndex()
	last, _ := store.LastIndex()
	if first != 1001 || last != 4000 {
		t.Fatalf("entries %d to %d", first, last)
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		// A zeroed overflow page is inside a value, where bbolt has no checksum; entries are smaller than a page.
		if err := store.GetLog(index, &entry); err != nil || entry.Index != index {
			t.Fatalf("entry %d: %v", index, err)
		}
	}
}

func TestHealthyDatabaseOpens(t *testing.T) {
	dir := t.TempDir()
	makeDatabase(t, dir)
	for range 2 {
		store, err := openDatabase(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, store)
		if value, err := store.Get([]byte("big")); err != nil || len(value) != 20000 {
			t.Errorf("big value: %d, %v", len(value), err)
		}
		_ = store.Close()
	}
	t.Run("first start that was interrupted", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, databaseName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := openDatabase(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		_ = store.Close()
	})
}

func TestDatabaseInUseIsRefused(t *testing.T) {
	dir := t.TempDir()
	makeDatabase(t, dir)
	store, err := openDatabase(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if _, err := openDatabase(dir, false); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), databaseName) {
		t.Errorf("opening again: %v", err)
	}
}

// C21: whatever happens to the newest snapshot, the node does not start from an older one. The log is empty, as it is
// after a leader has sent a snapshot (D7): then nothing else would tell that something is missing.
func TestBadNewestSnapshotIsRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		damage  func(t *testing.T, newest string)
		keepLog bool
		want    string
	}{
		{"state", func(t *testing.T, newest string) { flip(t, filepath.Join(newest, "state.bin"), 10) }, false, "snapshot"},
		{"description", func(t *testing.T, newest string) { flip(t, filepath.Join(newest, "meta.json"), 0) }, false, "description cannot be read"},
		{"membership", func(t *testing.T, newest string) {
			replace(t, filepath.Join(newest, "meta.json"), `"Address"`, `"Addres3"`)
		}, false, "its checksum is another"},
		{"seal gone", func(t *testing.T, newest string) { _ = os.Remove(filepath.Join(newest, descriptionSum)) }, false, descriptionSum},
		{"no state", func(t *testing.T, newest string) { _ = os.Remove(filepath.Join(newest, "state.bin")) }, false, "snapshot"},
		{"gone", func(t *testing.T, newest string) { _ = os.RemoveAll(newest) }, true, "the log begins at"},
		{"truncated", func(t *testing.T, newest string) { _ = os.Truncate(filepath.Join(newest, "state.bin"), 5) }, false, "snapshot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 1, func(c *Config) { c.Snapshots.Trailing = 1 })
				m := cl.form()
				for range 2 {
					for i := range 30 {
						cl.submit(m, fmt.Sprint(i))
					}
					if err := m.Snapshot(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				config := m.config
				cl.stop(m)
				found, err := filepath.Glob(filepath.Join(config.Dir, snapshotsName, "*-*-*"))
				if err != nil || len(found) != 2 {
					t.Fatalf("snapshots %v, %v", found, err)
				}
				slices.SortFunc(found, func(a, b string) int { return snapshotIndex(t, a) - snapshotIndex(t, b) })
				c.damage(t, found[1])
				if !c.keepLog {
					dropLog(t, config.Dir)
				}
				config.New, config.Stream = false, cl.network.listen(config.Address)
				again, err := Open(config)
				if err == nil {
					_ = again.Shutdown(t.Context())
					t.Fatal("opened")
				}
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), config.Dir) || !strings.Contains(err.Error(), repair) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

func replace(t *testing.T, path, old, new string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(content), old) {
		t.Fatalf("%q is not in %s: %v", old, path, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(content), old, new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A snapshot's description with one bit changed is refused, or says what it said.
func TestEveryFlippedBitOfADescriptionIsSeen(t *testing.T) {
	dir := t.TempDir()
	files, err := openSnapshots(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	members := raft.Configuration{Servers: []raft.Server{{ID: "n1.00", Address: "n1:7800/00"}, {ID: "n2.01", Address: "n2:7800/01"}}}
	_, transport := raft.NewInmemTransport("n1:7800/00")
	sink, err := files.Create(raft.SnapshotVersionMax, 4711, 8, members, 42, transport)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sink.Write([]byte("state"))
	if err := errors.Join(err, sink.Close()); err != nil {
		t.Fatal(err)
	}
	read := func() (raft.SnapshotMeta, error) {
		files, err := openSnapshots(dir, hclog.NewNullLogger())
		if err != nil {
			return raft.SnapshotMeta{}, err
		}
		meta, state, err := files.Open(sink.ID())
		if err != nil {
			return raft.SnapshotMeta{}, err
		}
		meta.Peers = nil // not read in this version
		return *meta, state.Close()
	}
	want, err := read()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, snapshotsName, sink.ID(), "meta.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for bit := range 8 * len(whole) {
		changed := slices.Clone(whole)
		changed[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := read()
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("bit %d changed, %s, and it is read as %+v", bit, changed, got)
		}
		if err != nil {
			refused++
		}
	}
	if refused < len(whole) {
		t.Errorf("of %d bits only %d were refused", 8*len(whole), refused)
	}
}

// The same of the log's entries, of memberships in particular: those have no checksum of the state machine's.
func TestEveryFlippedBitOfAnEntryIsSeen(t *testing.T) {
	dir := t.TempDir()
	write := func(entries []*raft.Log) {
		store, err := openDatabase(dir, true)
		if err == nil {
			dog := newWatchdog(func(string) {})
			err = errors.Join((&logs{LogStore: store, watchdog: dog}).StoreLogs(entries), store.Close())
			dog.stop()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	members := raft.Configuration{Servers: []raft.Server{{ID: "n1.00", Address: "n1:7800/00"}}}
	entries := []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(members)},
		{Index: 2, Term: 1, Type: raft.LogNoop},
		{Index: 3, Term: 2, Type: raft.LogCommand, Data: []byte("command")},
	}
	write(entries)
	path := filepath.Join(dir, databaseName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Key and value of one entry stand after those of the other. A changed key is seen when the node starts (checkPages).
	from := bytes.LastIndex(whole, entries[0].Data) - 16
	to := from + bytes.Index(whole[from:], entries[2].Data) + 64
	if from < 0 || to < from || to-from > 1000 {
		t.Fatalf("the entries are at %d to %d", from, to)
	}
	isKey := map[int]bool{}
	for _, entry := range entries[1:] {
		at := bytes.Index(whole[from:], binary.BigEndian.AppendUint64(nil, entry.Index))
		for i := range 8 {
			isKey[from+at+i] = true
		}
	}
	store, err := openDatabase(dir, false) // which maps the file: what is written there is read
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	l := &logs{LogStore: store}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	refused := 0
	for bit := 8 * from; bit < 8*to; bit++ {
		if isKey[bit/8] {
			continue
		}
		flipped := []byte{whole[bit/8] ^ 1<<(bit%8)}
		if _, err := file.WriteAt(flipped, int64(bit/8)); err != nil {
			t.Fatal(err)
		}
		for _, want := range entries {
			var got raft.Log
			err := l.GetLog(want.Index, &got)
			switch {
			case err != nil && !errors.Is(err, ErrDamaged):
				t.Errorf("byte %d: entry %d: %v", bit/8, want.Index, err)
			case err != nil:
				refused++
			case got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !bytes.Equal(got.Data, want.Data):
				t.Errorf("byte %d changed from %x to %x, and entry %d is read as %+v", bit/8, whole[bit/8], flipped, want.Index, got)
			}
		}
		if _, err := file.WriteAt(whole[bit/8:bit/8+1], int64(bit/8)); err != nil {
			t.Fatal(err)
		}
	}
	if refused < to-from {
		t.Errorf("of %d bits only %d were refused", 8*(to-from), refused)
	}
}

// And of terms and votes.
func TestEveryFlippedBitOfAVoteIsSeen(t *testing.T) {
	disk := raft.NewInmemStore()
	dog := newWatchdog(func(string) {})
	defer dog.stop()
	store := &votes{StableStore: disk, watchdog: dog}
	if err := errors.Join(store.SetUint64([]byte("CurrentTerm"), 7), store.SetUint64(keyVoteTerm, 7), store.Set(keyVoteCandidate, []byte("n1"))); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"CurrentTerm", string(keyVote)} {
		whole, err := disk.Get([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		for bit := range 8 * len(whole) {
			changed := slices.Clone(whole)
			changed[bit/8] ^= 1 << (bit % 8)
			_ = disk.Set([]byte(key), changed)
			_, termErr := store.GetUint64([]byte("CurrentTerm"))
			_, voteErr := store.Get(keyVoteCandidate)
			if errors.Is(termErr, ErrDamaged) == errors.Is(voteErr, ErrDamaged) {
				t.Errorf("bit %d of %s changed: %v, %v", bit, key, termErr, voteErr)
			}
		}
		_ = disk.Set([]byte(key), whole)
	}
	if term, err := store.GetUint64(keyVoteTerm); term != 7 || err != nil {
		t.Errorf("the vote is of term %d: %v", term, err)
	}
}

func dropLog(t *testing.T, dir string) {
	t.Helper()
	store, err := openDatabase(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	last, err := store.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.DeleteRange(1, last); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func snapshotIndex(t *testing.T, path string) (index int) {
	t.Helper()
	var term, when int
	if _, err := fmt.Sscanf(filepath.Base(path), "%d-%d-%d", &term, &index, &when); err != nil {
		t.Fatal(err)
	}
	return index
}

// A node that has snapshots is not new, whatever it is told.
func TestSnapshotsWithoutLogAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		m := c.form()
		if err := m.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		config := m.config
		c.stop(m)
		if err := os.Remove(filepath.Join(config.Dir, databaseName)); err != nil {
			t.Fatal(err)
		}
		config.Stream = c.network.listen(config.Address)
		if _, err := Open(config); !errors.Is(err, ErrDamaged) {
			t.Errorf("opened: %v", err)
		}
	})
}

// A state machine that cannot read its snapshot stops the start, with a panic too.
type picky struct {
	*list
	panics bool
}

func (p picky) Restore(io.ReadCloser) error {
	if p.panics {
		panic("no such format")
	}
	return errors.New("no such format")
}

func TestUnreadableSnapshotIsRefused(t *testing.T) {
	for _, panics := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 1, nil)
			m := c.form()
			if err := m.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			config := m.config
			c.stop(m)
			config.New, config.FSM, config.Stream = false, picky{&list{}, panics}, c.network.listen(config.Address)
			if _, err := Open(config); err == nil || !strings.Contains(err.Error(), config.Dir) {
				t.Errorf("opened: %v", err)
			}
		})
	}
}
