package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// deleteChunk bounds one delete transaction, so that cutting a long log keeps no append waiting for seconds.
const deleteChunk = 4096

// logs is the log store as Raft sees it, below the cache: fail-stop (watchdog.go) and monotonic (D7). It seals entries: bbolt
// has no checksums, and what the state machine's own (R2) do not cover, terms and memberships, decides as much.
type logs struct {
	raft.LogStore
	watchdog *watchdog
	running  atomic.Bool // Raft has started: nobody would be told of damage but by the watchdog
}

var _ raft.MonotonicLogStore = (*logs)(nil)

// IsMonotonic is guard D7: Raft then drops the whole old log when it installs a snapshot. Otherwise an uncommitted tail
// stays below the snapshot, and if this node leads later it serves that tail as committed.
func (l *logs) IsMonotonic() bool { return !off(guardD7) }

func (l *logs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l *logs) StoreLogs(entries []*raft.Log) error {
	sealed := make([]*raft.Log, len(entries))
	for i, entry := range entries {
		with := *entry // the leader's goroutines share the entry itself
		with.Extensions = seal(entry)
		sealed[i] = &with
	}
	return l.watchdog.guard(WritingLog, func() error { return l.LogStore.StoreLogs(sealed) })
}

// GetLog gives an entry that is as it was written. One that is not ends the node.
func (l *logs) GetLog(index uint64, entry *raft.Log) error {
	err := l.LogStore.GetLog(index, entry)
	switch {
	case err == nil && entry.Index == index && string(entry.Extensions) == string(seal(entry)):
		return nil
	case errors.Is(err, raft.ErrLogNotFound):
		return err
	case err == nil:
		err = errors.New("its checksum is another")
	}
	err = fmt.Errorf("entry %d of the log: %w: %w", index, ErrDamaged, err)
	if l.running.Load() {
		l.watchdog.fail(err.Error())
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal is the checksum of an entry. It stands in a field that Raft passes on and does not use.
func seal(entry *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], entry.Index)
	binary.BigEndian.PutUint64(head[8:], entry.Term)
	head[16] = byte(entry.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, entry.Data)
	return binary.BigEndian.AppendUint32(nil, sum)
}

// DeleteRange deletes in chunks and never leaves a hole, whatever it is interrupted by: a beginning of the log goes from
// its start, an end of it (entries that another leader overruled) from its end.
func (l *logs) DeleteRange(first, last uint64) error {
	start, err := l.FirstIndex()
	if err != nil {
		return err
	}
	fromStart := first <= start
	for first <= last {
		from, to := first, last
		if last-first >= deleteChunk {
			if fromStart {
				to = first + deleteChunk - 1
			} else {
				from = last - deleteChunk + 1
			}
		}
		if err := l.watchdog.guard(CuttingLog, func() error { return l.LogStore.DeleteRange(from, to) }); err != nil {
			return err
		}
		if fromStart {
			first = to + 1
		} else {
			last = from - 1
		}
	}
	return nil
}
