package replica

import "github.com/hashicorp/raft"

// deleteChunk bounds one delete transaction, so that cutting a long log keeps no append waiting for seconds.
const deleteChunk = 4096

// logs is the log store as Raft sees it, below the cache: fail-stop (watchdog.go) and monotonic (D7).
type logs struct {
	raft.LogStore
	watchdog *watchdog
}

var _ raft.MonotonicLogStore = (*logs)(nil)

// IsMonotonic is guard D7: Raft then drops the whole old log when it installs a snapshot. Otherwise an uncommitted tail
// stays below the snapshot, and if this node leads later it serves that tail as committed.
func (l *logs) IsMonotonic() bool { return true }

func (l *logs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l *logs) StoreLogs(entries []*raft.Log) error {
	return l.watchdog.guard(WritingLog, func() error { return l.LogStore.StoreLogs(entries) })
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
