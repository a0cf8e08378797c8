package fsm

import (
	"encoding/binary"

	"github.com/google/btree"
)

// tasked is a request under its task, the unit of work that holds and waits in sequence (R7).
type tasked struct {
	session uint64
	hash    uint64 // of the task, so that to find it compares few strings
	task    string
	seq     Seq
}

func taskedLess(a, b tasked) bool {
	if a.session != b.session {
		return a.session < b.session
	}
	if a.hash != b.hash {
		return a.hash < b.hash
	}
	if a.task != b.task {
		return a.task < b.task
	}
	return a.seq.Less(b.seq)
}

func (r *request) asTask() tasked { return tasked{r.session, taskHash(r.task), r.task, r.seq} }

// taskHash tells tasks apart well enough by how they begin and end, and takes the same time for long ones.
func taskHash(task string) uint64 {
	var b [16]byte
	copy(b[:8], task)
	copy(b[8:], task[max(0, len(task)-8):])
	return (binary.LittleEndian.Uint64(b[:8])*31+binary.LittleEndian.Uint64(b[8:]))*31 + uint64(len(task))
}

// eachOf calls f with the requests of a task, until f returns false.
func eachOf(t *btree.BTreeG[tasked], of tasked, f func(Seq) bool) {
	t.AscendGreaterOrEqual(tasked{session: of.session, hash: of.hash, task: of.task}, func(x tasked) bool {
		return x.session == of.session && x.task == of.task && f(x.seq)
	})
}

func countOf(t *btree.BTreeG[tasked], of tasked, most int) (n int) {
	eachOf(t, of, func(Seq) bool {
		n++
		return n < most
	})
	return n
}

// A request is tangled when it waits for several locks, or its task waits more than once: who stands behind it may be
// stuck for more reasons than the holders of that lock. Waiting is noted in steps that cost the same however often a task
// waits.

// waitAsTask notes that the task of a request waits; a try is no wait (R7).
func (s *State) waitAsTask(r *request) {
	if r.task == "" {
		return
	}
	s.taskWaits.ReplaceOrInsert(r.asTask())
	switch countOf(s.taskWaits, r.asTask(), 3) {
	case 1:
		s.tangle(r, len(r.locks) > 1)
	case 2: // the other one becomes tangled too
		eachOf(s.taskWaits, r.asTask(), func(seq Seq) bool {
			s.tangle(s.peekRequest(seq), true)
			return true
		})
	default:
		s.tangle(r, true)
	}
}

// untask takes a request out of its task, when it stops waiting or holding.
func (s *State) untask(r *request) {
	if r.task == "" {
		return
	}
	s.taskHolds.Delete(r.asTask())
	if _, waited := s.taskWaits.Delete(r.asTask()); !waited {
		return
	}
	s.tangle(r, false)
	if countOf(s.taskWaits, r.asTask(), 2) == 1 {
		eachOf(s.taskWaits, r.asTask(), func(seq Seq) bool {
			last := s.peekRequest(seq)
			s.tangle(last, len(last.locks) > 1)
			return true
		})
	}
}

func (s *State) tangle(r *request, tangled bool) {
	for i := range r.locks {
		if tangled {
			s.tangled.ReplaceOrInsert(r.place(i))
		} else {
			s.tangled.Delete(r.place(i))
		}
	}
}
