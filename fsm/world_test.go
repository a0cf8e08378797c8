package fsm

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var worldTime = flag.Duration("world", 0, "how long TestSmallWorld searches; 0 is 15 s, or 5 s under the race detector")

// smallWorld is what a search may do: up to three sessions, the locks a and b, and these commands. The world "everything" has
// all of them; the others have fewer, and so the search gets deeper in the same time.
type smallWorld struct {
	name     string
	acquires []string // in the language of the scripts, without session and number
	convert  bool
	force    bool
	times    bool // the clock goes on to the next deadline
	end      bool // sessions are closed and opened
	own      bool // the acquires are made without a session too
	requests int  // of a session at a time
}

// smallWorlds returns the worlds that are searched.
func smallWorlds() []smallWorld {
	exclusive := []string{"a", "a wait=1", "b wait=1"}
	shared := []string{"a:shared", "a:shared wait=1", "a:shared:2 wait=1"}
	several := []string{"a b wait=1", "a:shared b wait=1", "a b:shared wait=1", "a:shared:2 b:shared:2 wait=1"}
	priority := []string{"a wait=1 priority=1", "a:shared wait=1 priority=1", "a b wait=1 priority=1"}
	tasks := []string{"a wait=1 task=t", "b wait=1 task=t", "a:shared wait=1 task=t", "a b wait=1 task=t", "a wait=1 task=u", "b wait=1 task=u"}
	unclean := []string{"a max=50 delay=30", "a:shared max=50 delay=30", "b delay=70"}
	return []smallWorld{
		{
			name: "everything", acquires: slices.Concat(exclusive, shared, several, priority, tasks, unclean),
			convert: true, force: true, times: true, end: true, own: true, requests: 2,
		},
		{name: "order", acquires: slices.Concat(exclusive[1:], shared[1:], several, priority), requests: 2},
		{name: "conversions", acquires: slices.Concat(exclusive[:1], shared, []string{"a:shared wait=1 task=t", "b wait=1 task=t"}), convert: true, requests: 2},
		{
			name:     "deadlocks",
			acquires: slices.Concat(tasks, priority[:1], []string{"a:shared:2 wait=1 task=t", "b:shared:2 wait=1 task=t", "b wait=1 priority=1 task=t"}),
			convert:  true, requests: 2,
		},
		{
			name: "ends", acquires: slices.Concat(exclusive[1:2], shared[1:2], unclean),
			convert: true, force: true, times: true, end: true, own: true, requests: 2,
		},
	}
}

const worldSessions = 3

// worldNode is a state by the way that leads to it.
type worldNode struct {
	from *worldNode
	step step
}

func (n *worldNode) path() (steps []step) {
	for ; n != nil; n = n.from {
		steps = append(steps, n.step)
	}
	slices.Reverse(steps)
	return steps
}

// worldRun is the machine and the model at one place.
type worldRun struct {
	state  *State
	model  *model
	tokens *tokens
	stamps stamper
}

// fork copies all of it.
func (r *worldRun) fork() *worldRun {
	return &worldRun{r.state.fork(), r.model.clone(), &tokens{maps.Clone(r.tokens.last), maps.Clone(r.tokens.seen)}, r.stamps}
}

// apply applies a step to both and compares them.
func (r *worldRun) apply(st step) error {
	index := r.state.index + 1
	e := r.stamps.entry(index, st)
	got, err := r.state.Apply(index, 1, e)
	if err != nil {
		return err
	}
	want := r.model.apply(index, 1, e)
	for i, o := range got.Outcomes {
		if err := r.model.checkCycle(uint32(i), o); err != nil {
			return err
		}
		want.Outcomes[i].Cycle = o.Cycle
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("results differ: machine\n%s\nmodel\n%s", formatResult(got), formatResult(want))
	}
	return nil
}

// check looks at a state that was not seen before.
func (r *worldRun) check() error {
	if got, want := describeState(r.state), r.model.describe(); got != want {
		return fmt.Errorf("states differ: machine\n%s\nmodel\n%s", got, want)
	}
	delayed := slices.ContainsFunc(items(r.state.locks), func(l *lock) bool { return l.delay != 0 })
	if r.state.holds.Len() == 0 && r.state.queue.Len() > 0 && !delayed {
		return errors.New("requests alone are stuck")
	}
	return errors.Join(check(r.state), r.tokens.after(r.state))
}

// worldKey names a state by what its future depends on: sessions are interchangeable, numbers and tokens are left out,
// requests are named by their order, and times are what is left of them. The locks are not interchangeable, because requests
// for both take them in the order of their names.
func worldKey(s *State) (key string, sessions map[uint64]string) {
	place := map[Seq]int{}
	for _, r := range allRequests(s) {
		if !r.granted || !r.converts() {
			place[r.seq] = len(place)
		}
	}
	left := func(at uint64) int64 {
		if at == never || at == 0 {
			return -1
		}
		return int64(at - s.clock)
	}
	sessions = map[uint64]string{}
	for _, v := range items(s.sessions) {
		sessions[v.number] = fmt.Sprintf("%d %d %v", v.nature, left(v.deadline), v.tomb)
	}
	for _, r := range allRequests(s) {
		if r.granted && r.converts() {
			continue // only its number is left
		}
		var b strings.Builder
		if !r.granted {
			fmt.Fprintf(&b, "#%d/%d", place[r.seq], r.depth)
		}
		fmt.Fprintf(&b, "%s %d %d %d %d", r.task, r.priority, left(r.deadline), r.delay, r.maxHold)
		if r.converts() {
			fmt.Fprintf(&b, " of %d", place[r.of])
		}
		for _, p := range r.locks {
			if p.lock != 0 {
				fmt.Fprintf(&b, " %v", p.Want)
				if c := s.peekRequest(p.conversion); c != nil && !c.granted {
					fmt.Fprintf(&b, "by %d", place[c.seq])
				}
			}
		}
		sessions[r.session] += "|" + b.String()
	}
	all := slices.Sorted(maps.Values(sessions))
	for _, l := range items(s.names) {
		v, _ := s.locks.Get(&lock{number: l.number})
		if v.delay != 0 {
			all = append(all, fmt.Sprintf("%s %d", l.key, left(v.delay)))
		}
	}
	return strings.Join(all, "\n"), sessions
}

// moves lists what can happen next in a state. Of sessions that are alike only one moves.
func (w smallWorld) moves(s *State, sessions map[uint64]string) (moves []step) {
	n := s.index + 1 // numbers and names that were not used before
	add := func(c Command) { moves = append(moves, step{commands: []Command{c}}) }
	seen := map[string]bool{}
	for _, v := range items(s.sessions) {
		if v.tomb || seen[sessions[v.number]] {
			continue
		}
		seen[sessions[v.number]] = true
		if w.end {
			add(&Close{Session: v.number})
		}
		if v.nature == natureNamed && int(v.holds+v.waits) < w.requests {
			for _, a := range w.acquires {
				add(parseCommand(fmt.Sprintf("acquire #%d %d %s", v.number, n, a), nil))
			}
		}
		for _, r := range allRequests(s) {
			if r.session == v.number && (!r.granted || !r.converts()) {
				w.movesOf(s, r, n, add)
			}
		}
	}
	if s.sessions.Len() < worldSessions {
		for _, a := range w.acquires {
			if w.own {
				add(parseCommand(fmt.Sprintf("acquire own=%d ttl=200 %s", n, a), nil))
			}
		}
		add(&Open{Session: label(fmt.Sprint(n)), TTL: 20_000})
	}
	if w.force {
		for _, l := range items(s.names) {
			s.eachHold(l.number, func(p place) bool {
				r := s.peekRequest(p.seq)
				add(&Force{Name: l.key, Token: r.locks[r.position(p.lock)].token})
				return false
			})
		}
	}
	if d, found := s.due.Min(); found && w.times {
		moves = append(moves, step{elapsed: d.at + 1 - s.clock})
	}
	return moves
}

// movesOf lists what can be done with one request.
func (w smallWorld) movesOf(s *State, r *request, n uint64, add func(Command)) {
	if !r.granted {
		add(&Cancel{Session: r.session, Number: r.number})
		return
	}
	add(&Release{Session: r.session, Number: r.number, Token: r.locks[slices.IndexFunc(r.locks, func(p part) bool { return p.lock != 0 })].token})
	for _, p := range r.locks {
		if p.lock == 0 {
			continue
		}
		if len(r.locks) > 1 {
			add(&Release{Session: r.session, Number: r.number, Token: p.token, Name: p.Name})
		}
		if !w.convert || r.number == 0 {
			continue
		}
		c := Convert{Session: r.session, Number: n, Of: r.number, Token: p.token, Want: Want{Name: p.Name, Mode: Exclusive}}
		if p.Mode == Exclusive {
			c.Mode = Shared
			limited := c
			limited.Limit = 2
			add(&limited)
		} else {
			waits := c
			waits.Wait = 1
			add(&waits)
		}
		add(&c)
	}
}

// search goes through all states, the ones nearest to the beginning first, until the time is over.
func (w smallWorld) search(t *testing.T, until time.Time) {
	begin := []step{{begin: &Begin{Cluster: label("cluster")}}, parseStep("+0 open A ttl=20000 ; open B ttl=20000", nil)}
	if !w.own { // else there is room for one of an acquire's own
		begin = append(begin, parseStep("+0 open C ttl=20000", nil))
	}
	root := &worldRun{state: NewState(), model: newModel(), tokens: newTokens()}
	for _, st := range begin {
		if err := root.apply(st); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	frontier := []*worldNode{nil}
	depth, transitions := 0, 0
	for ; len(frontier) > 0; depth++ {
		var next []*worldNode
		for _, node := range frontier {
			if time.Now().After(until) {
				t.Logf("%s: all states %d steps deep, and some beyond: %d states, %d transitions", w.name, depth, len(seen), transitions)
				return
			}
			at := root.fork()
			for _, st := range node.path() {
				if err := at.apply(st); err != nil {
					t.Fatal(err)
				}
				if err := at.tokens.after(at.state); err != nil {
					t.Fatal(err)
				}
			}
			_, sessions := worldKey(at.state)
			for _, st := range w.moves(at.state, sessions) {
				transitions++
				to := at.fork()
				err := to.apply(st)
				key, _ := worldKey(to.state)
				child := &worldNode{node, st}
				if err == nil && !seen[key] {
					seen[key] = true
					err = to.check()
					next = append(next, child)
				}
				if err != nil {
					var b strings.Builder
					for i, st := range append(begin, child.path()...) {
						fmt.Fprintf(&b, "%d: %v\n", i+1, st)
					}
					t.Fatalf("%v\nafter\n%s", err, b.String())
				}
			}
		}
		frontier = next
	}
	t.Logf("%s: that is all, %d steps deep: %d states, %d transitions", w.name, depth, len(seen), transitions)
}

// TestSmallWorld goes through every state of small worlds as far as the time allows, and checks each (R5 to R9).
func TestSmallWorld(t *testing.T) {
	all := *worldTime
	if all == 0 {
		all = 15 * time.Second
		if raced {
			all = 5 * time.Second
		}
	}
	for _, w := range smallWorlds() {
		t.Run(w.name, func(t *testing.T) { w.search(t, time.Now().Add(all/time.Duration(len(smallWorlds())))) })
	}
}
