package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const snapshotsName = "snapshots"

// snapshots is the library's store of snapshot files with three guards. It shows Raft only the newest snapshot: Raft
// starts from an older one when the newest is bad, which is wrong once the log between them has been cut (C21). It
// refuses to install a snapshot of what this node already has (install.go). And it notes what was read last, for a
// state machine is not told the index of what it restores.
type snapshots struct {
	*raft.FileSnapshotStore
	read atomic.Pointer[raft.SnapshotMeta]
	// has says whether this node holds everything up to this index and term; installing is the index of the snapshot that
	// a leader is sending, or 0.
	has        holder
	installing atomic.Uint64
}

var errAlreadyHere = errors.New("this node already has what the snapshot holds")

// openSnapshots removes what interrupted snapshots left behind (the library never does) and refuses a directory with a
// snapshot in it that cannot be listed: the library would pass over it in silence.
func openSnapshots(dir string, logger hclog.Logger) (*snapshots, error) {
	path := filepath.Join(dir, snapshotsName)
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading the snapshots: %w", err)
	}
	whole := map[string]bool{}
	for _, entry := range entries {
		switch {
		case !entry.IsDir():
		case strings.HasSuffix(entry.Name(), ".tmp"):
			if err := os.RemoveAll(filepath.Join(path, entry.Name())); err != nil {
				return nil, fmt.Errorf("removing an unfinished snapshot: %w", err)
			}
		default:
			whole[entry.Name()] = true
		}
	}
	// One more than is kept, since a crash can come between a new snapshot and the removal of the oldest.
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, max(retainSnapshots, len(whole)), logger)
	if err != nil {
		return nil, fmt.Errorf("opening the snapshots: %w", err)
	}
	listed, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("listing the snapshots: %w", err)
	}
	for _, meta := range listed {
		delete(whole, meta.ID)
	}
	for name := range whole {
		return nil, damaged(filepath.Join(path, name), errors.New("the snapshot's description cannot be read"))
	}
	if len(listed) > retainSnapshots {
		files, err = raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, logger)
		if err != nil {
			return nil, fmt.Errorf("opening the snapshots: %w", err)
		}
	}
	return &snapshots{FileSnapshotStore: files}, nil
}

// List gives the newest snapshot only.
func (s *snapshots) List() ([]*raft.SnapshotMeta, error) {
	listed, err := s.FileSnapshotStore.List()
	return listed[:min(1, len(listed))], err
}

// Open reads the file once for its checksum before it is given out.
func (s *snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, file, err := s.FileSnapshotStore.Open(id)
	if err == nil {
		if last := s.read.Load(); last == nil || last.Index < meta.Index {
			s.read.Store(meta)
		}
	}
	return meta, file, err
}

// Create runs on Raft's main loop when a leader's snapshot is installed, before anything has been changed: the last
// moment at which the log cannot grow under the question whether the snapshot is behind it.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	if has := s.has.Load(); has != nil && index == s.installing.Load() && (*has)(index, term) {
		return nil, errAlreadyHere
	}
	return s.FileSnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
}

// newestIndex is the index of the newest snapshot, or 0.
func (s *snapshots) newestIndex() (uint64, error) {
	listed, err := s.List()
	if err != nil || len(listed) == 0 {
		return 0, err
	}
	return listed[0].Index, nil
}

// holder is a question that can be asked only once Raft is there to answer it.
type holder = atomic.Pointer[func(index, term uint64) bool]

// guard sets what decides whether a snapshot is behind this node.
func (s *snapshots) guard(has func(index, term uint64) bool) { s.has.Store(&has) }
