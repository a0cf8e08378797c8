package fsm

import "github.com/google/btree"

// tasked is a request under its task, the unit of work that holds and waits in sequence (R7).
type tasked struct {
	session uint64
	task    string
	seq     Seq
}

func taskedLess(a, b tasked) bool {
	if a.session != b.session {
		return a.session < b.session
	}
	if a.task != b.task {
		return a.task < b.task
	}
	return a.seq.Less(b.seq)
}

func (r *request) asTask() tasked { return tasked{r.session, r.task, r.seq} }

// eachOf calls f with the requests of a task, until f returns false.
func eachOf(t *btree.BTreeG[tasked], of tasked, f func(Seq) bool) {
	t.AscendGreaterOrEqual(tasked{session: of.session, task: of.task}, func(x tasked) bool {
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

// tangle notes the places of a request that waits for several locks, and of all requests of a task that waits more than
// once: who stands behind such a one may be stuck for more reasons than the holders of that lock.
func (s *State) tangle(r *request) {
	several := countOf(s.taskWaits, r.asTask(), 2) > 1
	eachOf(s.taskWaits, r.asTask(), func(seq Seq) bool {
		w, _ := s.requests.Get(&request{seq: seq})
		for i := range w.locks {
			if several || len(w.locks) > 1 {
				s.tangled.ReplaceOrInsert(w.place(i))
			} else {
				s.tangled.Delete(w.place(i))
			}
		}
		return true
	})
}

// untask takes a request out of its task, when it stops waiting or holding.
func (s *State) untask(r *request) {
	if r.task == "" {
		return
	}
	s.taskHolds.Delete(r.asTask())
	if _, waited := s.taskWaits.Delete(r.asTask()); waited {
		for i := range r.locks {
			s.tangled.Delete(r.place(i))
		}
		s.tangle(r)
	}
}
