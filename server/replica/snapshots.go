package replica

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
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

// snapshots is the library's store of snapshot files with four guards. It shows Raft only the newest snapshot: Raft
// starts from an older one when the newest is bad, which is wrong once the log between them has been cut (C21). It
// refuses to install a snapshot of what this node already has (install.go). It notes what was read last, for a
// state machine is not told the index of what it restores. And it seals descriptions: the library has a checksum of the state
// only, and a changed bit in the description is another index, another term or another membership.
type snapshots struct {
	*raft.FileSnapshotStore
	path string
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
		if err := checkDescription(path, meta); err != nil {
			return nil, err
		}
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
	return &snapshots{FileSnapshotStore: files, path: path}, nil
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
		if err := checkDescription(s.path, meta); err != nil {
			_ = file.Close()
			return nil, nil, err
		}
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
	sink, err := s.FileSnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	meta := raft.SnapshotMeta{
		ID: sink.ID(), Version: version, Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}
	// Into the directory that Close gives its name.
	if err := writeSynced(filepath.Join(s.path, sink.ID()+".tmp", descriptionSum), describe(&meta)); err != nil {
		return nil, errors.Join(fmt.Errorf("sealing a snapshot's description: %w", err), sink.Cancel())
	}
	return sink, nil
}

// descriptionSum is the file beside a snapshot's description that has its checksum.
const descriptionSum = "meta.sha256"

// describe is the checksum of what a description says and the library has no checksum of; nil when it cannot be made.
func describe(meta *raft.SnapshotMeta) []byte {
	text, err := json.Marshal(raft.SnapshotMeta{
		ID: meta.ID, Version: meta.Version, Index: meta.Index, Term: meta.Term,
		Configuration: meta.Configuration, ConfigurationIndex: meta.ConfigurationIndex,
	})
	if err != nil { // numbers and strings
		return nil
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

func checkDescription(path string, meta *raft.SnapshotMeta) error {
	sum, err := os.ReadFile(filepath.Join(path, meta.ID, descriptionSum))
	if err == nil && !bytes.Equal(sum, describe(meta)) {
		err = errors.New("its checksum is another")
	}
	// The state has a checksum. How long it is, followers are told.
	if info, statErr := os.Stat(filepath.Join(path, meta.ID, "state.bin")); err == nil && statErr == nil && info.Size() != meta.Size {
		err = fmt.Errorf("it says that the state has %d bytes, not %d", meta.Size, info.Size())
	}
	if err != nil {
		return damaged(filepath.Join(path, meta.ID), fmt.Errorf("the snapshot's description: %w", err))
	}
	return nil
}

// writeSynced writes a file that survives a crash, with its name if that of its directory does.
func writeSynced(path string, content []byte) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return err
	}
	return file.Sync()
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
