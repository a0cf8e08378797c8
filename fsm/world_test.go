package fsm

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	own      bool // the acquires are made without a session too, with a key and without
	renew    bool
	value    bool
	raise    bool
	pairs    bool // an entry may have two commands
	late     bool // a command may come with the clock that ends something, which is not taken apart yet when it runs
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
			convert: true, force: true, times: true, end: true, own: true, renew: true, value: true, raise: true, requests: 2,
		},
		{name: "order", acquires: slices.Concat(exclusive[1:], shared[1:], several, priority), requests: 2},
		{name: "conversions", acquires: slices.Concat(exclusive[:1], shared, []string{"a:shared wait=1 task=t", "b wait=1 task=t"}), convert: true, requests: 2},
		{
			name:     "deadlocks",
			acquires: slices.Concat(tasks, priority[:1], []string{"a:shared:2 wait=1 task=t", "b:shared:2 wait=1 task=t", "b wait=1 priority=1 task=t", "a max=50 task=t"}),
			convert:  true, late: true, requests: 2,
		},
		{
			name: "ends", acquires: slices.Concat(exclusive[1:2], shared[1:2], unclean),
			convert: true, force: true, times: true, end: true, own: true, renew: true, value: true, raise: true, requests: 2,
		},
		{
			name: "entries", acquires: []string{"a", "a wait=1", "a:shared wait=1", "a b:shared wait=1", "b wait=1 task=t", "a wait=1 task=t"},
			convert: true, force: true, end: true, raise: true, pairs: true, requests: 2,
		},
	}
}

const worldSessions = 3

// worldNode is a state by the way that leads to it: which move in which other state. It is this small because there are
// millions.
type worldNode struct {
	from int32 // in the nodes of the search; -1 is where it begins
	move uint16
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
	// Also when this state was seen before: that the machine changed nothing may be the fault.
	if got, want := describeState(r.state), r.model.describe(); got != want {
		return fmt.Errorf("states differ: machine\n%s\nmodel\n%s", got, want)
	}
	return r.tokens.after(r.state)
}

// check looks at a state that was not seen before.
func (r *worldRun) check() error {
	delayed := slices.ContainsFunc(items(r.state.locks), func(l *lock) bool { return l.delay != 0 })
	if r.state.holds.Len() == 0 && r.state.queue.Len() > 0 && !delayed {
		return errors.New("requests alone are stuck")
	}
	return check(r.state)
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
				fmt.Fprintf(&b, " %v%s", p.Want, p.value)
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

// moves lists what can happen next in a state.
func (w smallWorld) moves(s *State, sessions map[uint64]string) (moves []step) {
	n := 2 * (s.index + 1) // numbers and names that were not used before
	commands := w.commands(s, sessions, n)
	for _, c := range commands {
		moves = append(moves, step{commands: []Command{c}})
	}
	if w.pairs {
		seconds := w.commands(s, sessions, n+1)
		for _, first := range commands {
			for _, second := range seconds {
				moves = append(moves, step{commands: []Command{first, second}})
			}
		}
	}
	d, found := s.due.Min()
	if found && w.late {
		for _, c := range commands {
			moves = append(moves, step{elapsed: d.at + 1 - s.clock, commands: []Command{c}})
		}
	}
	if found && w.times {
		// To the last moment of what ends next, when it must not have ended yet, and past it.
		if s.clock < d.at {
			moves = append(moves, step{elapsed: d.at - s.clock})
		}
		moves = append(moves, step{elapsed: d.at + 1 - s.clock})
	}
	return moves
}

// commands lists what can be asked for in a state. Of sessions that are alike only one asks.
func (w smallWorld) commands(s *State, sessions map[uint64]string, n uint64) (commands []Command) {
	add := func(c Command) { commands = append(commands, c) }
	seen := map[string]bool{}
	for _, v := range items(s.sessions) {
		if v.tomb || seen[sessions[v.number]] {
			continue
		}
		seen[sessions[v.number]] = true
		if w.end {
			add(&Close{Session: v.number})
		}
		if w.renew {
			add(&Renew{Sessions: []Renewal{{Session: v.number}}})
		}
		if w.own && v.nature == natureKeyed {
			add(&Cancel{Key: v.id, Keyed: true})
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
				add(parseCommand(fmt.Sprintf("acquire key=%d ttl=200 %s", n, a), nil))
			}
		}
		add(&Open{Session: label(fmt.Sprint(n)), TTL: 20_000})
	}
	if w.force {
		for _, l := range items(s.names) {
			s.eachHold(l.number, func(p place) bool {
				r := s.peekRequest(p.seq)
				token := r.locks[r.position(p.lock)].token
				add(&Force{Name: l.key, Token: token})
				add(&Force{Name: l.key, Token: token, Delay: 40})
				return false
			})
		}
	}
	if w.raise {
		add(&Raise{ID: label(fmt.Sprint(n))})
	}
	return commands
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
		if w.value && p.value == "" {
			add(&Value{Session: r.session, Number: r.number, Token: p.token, Name: p.Name, Value: "v"})
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

// maxWorldStates bounds the memory of a search: a state takes about 50 bytes.
const maxWorldStates = 40_000_000

// worldSearch goes through all states, the ones nearest to the beginning first, until the time is over.
type worldSearch struct {
	smallWorld
	begin []step
	until time.Time

	mu          sync.Mutex
	seen        map[[16]byte]struct{} // hashes of the keys
	nodes       []worldNode           // level by level
	transitions int
	err         error // the first one
}

func (w smallWorld) search(t *testing.T, until time.Time) {
	begin := []step{{begin: &Begin{Cluster: label("cluster")}}, parseStep("+0 open A ttl=20000 ; open B ttl=20000", nil)}
	if !w.own { // else there is room for one of an acquire's own
		begin = append(begin, parseStep("+0 open C ttl=20000", nil))
	}
	x := &worldSearch{smallWorld: w, begin: begin, until: until, seen: map[[16]byte]struct{}{}}
	from, to := -1, 0 // where it begins is no node
	for depth := 0; ; depth++ {
		all := x.level(from, to)
		if x.err != nil {
			t.Fatal(x.err)
		}
		if !all {
			t.Logf("%s: all states %d steps deep, and some beyond: %d states, %d transitions", w.name, depth, len(x.nodes), x.transitions)
			return
		}
		if from, to = to, len(x.nodes); from == to {
			t.Logf("%s: that is all, %d steps deep: %d states, %d transitions", w.name, depth, len(x.nodes), x.transitions)
			return
		}
	}
}

// level goes on from these nodes, on all cores, and reports whether there was time and memory for it.
func (x *worldSearch) level(from, to int) bool {
	const out = math.MaxInt32
	var next atomic.Int64
	next.Store(int64(from))
	var workers sync.WaitGroup
	before := x.nodes // which the workers add to
	for range runtime.GOMAXPROCS(0) {
		w := &worldWorker{worldSearch: x, nodes: before, parent: -2}
		workers.Go(func() {
			w.root = x.root()
			for {
				i := int(next.Add(1)) - 1
				if i >= to {
					return
				}
				if !w.expand(int32(i)) {
					next.Store(out)
					return
				}
			}
		})
	}
	workers.Wait()
	return next.Load() < out
}

// root returns a run where the search begins. Each worker has its own, as even a copy being taken changes it.
func (x *worldSearch) root() *worldRun {
	root := &worldRun{state: NewState(), model: newModel(), tokens: newTokens()}
	for _, st := range x.begin {
		if err := root.apply(st); err != nil {
			panic(err)
		}
	}
	return root
}

// worldWorker is one of those who search together.
type worldWorker struct {
	*worldSearch
	nodes []worldNode // of the levels before
	root  *worldRun
	// The parent of the node that was gone on from last: often the next one has the same.
	parent      int32
	parentRun   *worldRun
	parentMoves []step
}

func (w *worldWorker) movesAt(run *worldRun) []step {
	_, sessions := worldKey(run.state)
	return w.moves(run.state, sessions)
}

// replay returns a run that has come to a node, and the steps that led there.
func (w *worldWorker) replay(node int32) (*worldRun, []step) {
	if node < 0 {
		return w.root.fork(), nil
	}
	run, path := w.replay(w.nodes[node].from)
	st := w.movesAt(run)[w.nodes[node].move]
	if err := run.apply(st); err != nil {
		panic(err) // it went well before
	}
	return run, append(path, st)
}

// at returns a run that has come to a node.
func (w *worldWorker) at(node int32) *worldRun {
	if node < 0 {
		return w.root.fork()
	}
	if n := w.nodes[node]; n.from != w.parent {
		w.parent = n.from
		w.parentRun, _ = w.replay(n.from)
		w.parentMoves = w.movesAt(w.parentRun)
	}
	run := w.parentRun.fork()
	if err := run.apply(w.parentMoves[w.nodes[node].move]); err != nil {
		panic(err) // it went well before
	}
	return run
}

// expand tries everything that can happen in a state, and reports whether the search goes on.
func (w *worldWorker) expand(node int32) bool {
	at := w.at(node)
	for i, st := range w.movesAt(at) {
		if time.Now().After(w.until) {
			return false
		}
		to := at.fork()
		err := to.apply(st)
		key, _ := worldKey(to.state)
		if err == nil && w.add(key, worldNode{node, uint16(i)}) {
			err = to.check()
		}
		if err != nil {
			_, path := w.replay(node)
			var b strings.Builder
			for i, st := range append(append(slices.Clone(w.begin), path...), st) {
				fmt.Fprintf(&b, "%d: %v\n", i+1, st)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.err == nil {
				w.err = fmt.Errorf("%w\nafter\n%s", err, b.String())
			}
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && len(w.worldSearch.nodes) < maxWorldStates
}

// add notes a state and reports whether it is new.
func (x *worldSearch) add(key string, node worldNode) bool {
	sum := sha256.Sum256([]byte(key))
	short := [16]byte(sum[:16])
	x.mu.Lock()
	defer x.mu.Unlock()
	x.transitions++
	if _, found := x.seen[short]; found {
		return false
	}
	x.seen[short] = struct{}{}
	x.nodes = append(x.nodes, node)
	return true
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
