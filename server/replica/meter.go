package replica

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// Meter is told what the replica does, for figures. Its functions are called on Raft's own goroutines, several at once: they
// must be quick and must not block. Those that are nil are not called.
type Meter struct {
	Applied  func(took time.Duration)                         // the state machine applied one entry
	Wrote    func(what string, took time.Duration)            // WritingLog, CuttingLog or WritingVote, with its flush to the disk
	Snapshot func(bytes int64, took time.Duration, err error) // a snapshot of this node's was written, or was not
	Failed   func(call string)                                // one of PeerCalls had no answer, or a refusal
}

// What is written, as the watchdog says it too.
const (
	WritingLog  = "writing the log"
	CuttingLog  = "cutting the log"
	WritingVote = "writing a term or vote"
)

// PeerCalls are Raft's calls to its peers.
var PeerCalls = []string{callAppend, callVote, callPreVote, callSnapshot, callTakeOver}

const (
	callAppend   = "append"
	callVote     = "vote"
	callPreVote  = "prevote"
	callSnapshot = "snapshot"
	callTakeOver = "take-over"
)

func (m Meter) applied(took time.Duration) {
	if m.Applied != nil {
		m.Applied(took)
	}
}

func (m Meter) wrote(what string, took time.Duration) {
	if m.Wrote != nil {
		m.Wrote(what, took)
	}
}

func (m Meter) snapshot(bytes int64, took time.Duration, err error) {
	if m.Snapshot != nil {
		m.Snapshot(bytes, took, err)
	}
}

// failed passes the error on.
func (m Meter) failed(call string, err error) error {
	if err != nil && m.Failed != nil {
		m.Failed(call)
	}
	return err
}

// Files are the sizes of what is on the disk.
type Files struct {
	Log      int64 // bytes of raft.db
	Free     int64 // of these in pages that are free to be used again
	Freelist int64 // bytes that the list of them takes
	Snapshot int64 // bytes of the newest snapshot, 0 when there is none
	Index    uint64
}

// Files looks at the files. It reads the directory, so it is not for every request.
func (r *Replica) Files() Files {
	stats := r.database.Stats()
	out := Files{Free: int64(stats.FreeAlloc), Freelist: int64(stats.FreelistInuse)}
	if info, err := os.Stat(filepath.Join(r.dir, databaseName)); err == nil {
		out.Log = info.Size()
	}
	if listed, err := r.machine.snapshots.List(); err == nil && len(listed) > 0 {
		out.Snapshot, out.Index = listed[0].Size, listed[0].Index
	}
	return out
}

// measured is a snapshot that tells how large it was and how long it took to write.
type measured struct {
	raft.FSMSnapshot
	meter Meter
}

func (m measured) Persist(sink raft.SnapshotSink) error {
	began, counted := time.Now(), &countedSink{SnapshotSink: sink}
	err := m.FSMSnapshot.Persist(counted)
	m.meter.snapshot(counted.bytes, time.Since(began), err)
	return err
}

type countedSink struct {
	raft.SnapshotSink
	bytes int64
}

func (s *countedSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	s.bytes += int64(n)
	return n, err
}

// What follows are the transport's calls, with their failures told.

func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, in *raft.AppendEntriesRequest, out *raft.AppendEntriesResponse) error {
	return t.meter.failed(callAppend, t.NetworkTransport.AppendEntries(id, to, in, out))
}

func (t *transport) RequestVote(id raft.ServerID, to raft.ServerAddress, in *raft.RequestVoteRequest, out *raft.RequestVoteResponse) error {
	return t.meter.failed(callVote, t.NetworkTransport.RequestVote(id, to, in, out))
}

func (t *transport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, in *raft.RequestPreVoteRequest, out *raft.RequestPreVoteResponse) error {
	return t.meter.failed(callPreVote, t.NetworkTransport.RequestPreVote(id, to, in, out))
}

func (t *transport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, in *raft.InstallSnapshotRequest, out *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.meter.failed(callSnapshot, t.NetworkTransport.InstallSnapshot(id, to, in, out, data))
}

func (t *transport) TimeoutNow(id raft.ServerID, to raft.ServerAddress, in *raft.TimeoutNowRequest, out *raft.TimeoutNowResponse) error {
	return t.meter.failed(callTakeOver, t.NetworkTransport.TimeoutNow(id, to, in, out))
}
