package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Wakeups finds a lock that lies idle while somebody waits for it: a waiter that was not woken, or a dead holder that was
// not freed in time. Of a semaphore it finds a free permit, and of a reader who waits to become a writer that nobody else is left. It looks only at calm times, without faults, and takes a lock to be held whenever it may be.
type Wakeups struct {
	// TTL is the longest time for which a hold lives on after its holder's last sign of life.
	TTL time.Duration
	// Slack is how long it may take until an idle lock is granted: some round trips and a tick.
	Slack time.Duration
	// Idle is how long a lock may lie idle in vain. 0 is Slack; less is asked where nothing else slows a cluster down.
	Idle time.Duration
	// Settle is for how long after a fault the times are not calm yet: an election, a reconnection.
	Settle time.Duration
	// Unknown is for how long a request with an unknown outcome may still stand in the queue after its client has given
	// it up.
	Unknown time.Duration
}

// Name is "wake-ups".
func (Wakeups) Name() string { return "wake-ups" }

// moment is a change of what is so at one lock, or group of locks that are asked for together.
type moment struct {
	at     time.Duration
	held   int // by so many more
	waits  int // likewise
	shown  []int
	waiter int // who begins or ends to wait: the Index of the invocation
}

// Check looks once at each operation, in O(n log n).
func (w Wakeups) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(w.Name(), ops)
	if !ok || len(ops) == 0 {
		return v.over("waits")
	}
	faults := disturbed(ops, w.Settle)
	end := ops[len(ops)-1].Time
	groups := group(r.operations)
	permits := groups.permits(r.operations)
	moments := map[string][]moment{}
	leases := map[string]time.Duration{}
	for _, o := range r.operations {
		if o.Outcome() == history.OK && o.Complete.Session != "" {
			leases[o.Complete.Session] = max(leases[o.Complete.Session], o.Complete.Lease)
		}
	}
	for _, h := range r.holds {
		lock := groups.of(h.lock)
		moments[lock] = append(moments[lock], moment{at: h.known, held: 1})
		if gone := w.gone(h); gone < end {
			moments[lock] = append(moments[lock], moment{at: gone, held: -1, shown: h.shown()})
		}
	}
	for _, o := range r.operations {
		if o.Invoke.F == history.Queue {
			if from, to := w.secret(o, leases); to > from {
				lock := groups.of(o.Invoke.Lock)
				moments[lock] = append(moments[lock], moment{at: from, held: 1}, moment{at: to, held: -1, shown: o.Indexes()})
			}
		}
		if o.Invoke.F == history.Convert && o.Invoke.Mode == exclusive && (o.Outcome() == history.OK || o.Outcome() == history.Fail) {
			// While it waits, its own hold is in nobody's way.
			lock := groups.of(o.Invoke.Lock)
			moments[lock] = append(moments[lock],
				moment{at: o.Invoke.Time, held: -1, waits: 1, shown: o.Indexes(), waiter: o.Invoke.Index},
				moment{at: o.End(), held: 1, waits: -1, waiter: o.Invoke.Index})
			v.Figures["waits"]++
		}
		if o.Invoke.F != history.Acquire {
			continue
		}
		lock := groups.of(names(o)[0])
		moments[lock] = append(moments[lock],
			moment{at: o.Invoke.Time, waits: 1, shown: o.Indexes(), waiter: o.Invoke.Index},
			moment{at: min(o.End(), end), waits: -1, waiter: o.Invoke.Index})
		v.Figures["waits"]++
		// It may have been granted without anybody's being told.
		if from, to := w.secret(o, leases); to > from {
			moments[lock] = append(moments[lock], moment{at: from, held: 1}, moment{at: to, held: -1, shown: o.Indexes()})
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(moments)) {
		w.idle(&v, lock, permits[lock], moments[lock], faults)
	}
	return v.over("waits")
}

// gone is when the server has surely ended the hold, in calm times. What was not released for certain lives as long as its
// session, which may be renewed for other holds.
func (w Wakeups) gone(h *hold) time.Duration {
	last := max(h.until, h.lease, h.sign)
	if h.until == h.known && len(h.ends) == 0 {
		return history.Forever // nobody knows how long it was renewed
	}
	return min(h.gone, later(last, w.TTL+w.Slack))
}

// secret is when an acquire that was not told to be granted may have held the lock all the same. One that was never
// completed is not among them: whoever waits still would be told of a grant. One of a session that fell silent is not granted
// when that is over.
func (w Wakeups) secret(o history.Operation, leases map[string]time.Duration) (from, to time.Duration) {
	switch {
	case o.Complete.Type == history.Info && o.Complete.Note == history.Silent && leases[o.Invoke.Session] > 0:
		return o.Invoke.Time, later(leases[o.Invoke.Session], w.Slack)
	case o.Complete.Type == history.Info:
		return o.Invoke.Time, later(o.End(), w.Unknown+w.TTL)
	case o.Outcome() == history.Fail && o.Complete.Note != "":
		return o.Invoke.Time, later(o.End(), w.TTL+w.Slack) // granted, and lost before it was known
	}
	return 0, 0
}

// later adds to a time that may be Forever.
func later(t, d time.Duration) time.Duration {
	if t >= history.Forever-d {
		return history.Forever
	}
	return t + d
}

// idle goes over the moments of a group and finds when it was idle in vain: when fewer held it than the limit of a
// semaphore lets, or nobody when there is none.
func (w Wakeups) idle(v *Verdict, lock string, limit int, moments []moment, faults []span) {
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	free := max(limit, 1)
	var (
		now     moment // the sums
		idle    time.Duration
		waiting []moment
		freed   []int
	)
	for i, m := range moments {
		if i > 0 && now.held < free && now.waits > 0 {
			idle += calm(faults, moments[i-1].at, m.at)
			v.Figures["longest idle time in ms"] = max(v.Figures["longest idle time in ms"], idle.Milliseconds())
			if idle > cmp.Or(w.Idle, w.Slack) {
				held := "nobody held it"
				if limit > 0 {
					held = fmt.Sprintf("at most %d of %d permits were taken", max(now.held, 0), limit)
				}
				v.invalid(slices.Concat(freed, waiting[0].shown), "%s: %s, and %d waited, for %s of calm time until %s", lock, held, now.waits, seconds(idle), seconds(m.at))
				idle = 0
			}
		}
		now.held += m.held
		now.waits += m.waits
		switch {
		case m.waits > 0:
			waiting = append(waiting, m)
		case m.waits < 0:
			waiting = slices.DeleteFunc(waiting, func(w moment) bool { return w.waiter == m.waiter })
		}
		if m.held < 0 {
			freed = m.shown
		}
		if now.held >= free || now.waits == 0 {
			idle = 0
		}
	}
}

// names are the locks of an acquire.
func names(o history.Operation) []string {
	if len(o.Invoke.Locks) == 0 {
		return []string{o.Invoke.Lock}
	}
	var names []string
	for _, g := range o.Invoke.Locks {
		names = append(names, g.Name)
	}
	return names
}

// groups joins locks that somebody asks for at once: one of them may be kept for who waits for another.
type groups map[string]string

func group(operations []history.Operation) groups {
	g := groups{}
	for _, o := range operations {
		if o.Invoke.F == history.Acquire && len(o.Invoke.Locks) > 1 {
			for _, name := range names(o)[1:] {
				if a, b := g.of(o.Invoke.Locks[0].Name), g.of(name); a != b {
					g[b] = a
				}
			}
		}
	}
	return g
}

func (g groups) of(name string) string {
	for g[name] != "" {
		name = g[name]
	}
	return name
}

// permits gives the limits of those groups that are nothing but one semaphore: every request was for a permit of it, with
// the same limit. In others a request may have to wait behind one of another kind.
func (g groups) permits(operations []history.Operation) map[string]int {
	limits := map[string]int{}
	for _, o := range operations {
		if f := o.Invoke.F; f != history.Acquire && f != history.Queue && f != history.Convert {
			continue
		}
		limit := 0
		if o.Invoke.F != history.Convert && o.Invoke.Mode == shared && len(o.Invoke.Locks) == 0 {
			limit = int(o.Invoke.Limit)
		}
		for _, name := range names(o) {
			lock := g.of(name)
			if before, found := limits[lock]; found && before != limit {
				limit = 0
			}
			limits[lock] = limit
		}
	}
	return limits
}
