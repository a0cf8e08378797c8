package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// linkDelay is what every write takes: without any, a retrying leader would spin without the clock moving.
const linkDelay = 200 * time.Microsecond

// network joins stream layers by pipes, in virtual time.
type network struct {
	mu    sync.Mutex
	nodes map[string]*pipeLayer
	cut   map[string]bool // nodes that nobody reaches
}

type pipeLayer struct {
	network *network
	address string
	queue   chan net.Conn
	closed  chan struct{}
	once    sync.Once
	conns   []net.Conn // guarded by network.mu
}

type pipeAddr string

func (a pipeAddr) Network() string { return "pipe" }
func (a pipeAddr) String() string  { return string(a) }

// delayed is one end of a pipe with a link's delay; closing it ends a write on its way, as it does in a kernel.
type delayed struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func delay(conn net.Conn) *delayed { return &delayed{Conn: conn, closed: make(chan struct{})} }

func (d *delayed) Write(b []byte) (int, error) {
	select {
	case <-time.After(linkDelay):
		return d.Conn.Write(b)
	case <-d.closed:
		return 0, net.ErrClosed
	}
}

func (d *delayed) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

func newNetwork() *network { return &network{nodes: map[string]*pipeLayer{}, cut: map[string]bool{}} }

func (n *network) listen(address string) *pipeLayer {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &pipeLayer{network: n, address: address, queue: make(chan net.Conn), closed: make(chan struct{})}
	n.nodes[address] = l
	return l
}

// isolate cuts a node off, or joins it again.
func (n *network) isolate(address string, off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[address] = off
	if off {
		for _, l := range n.nodes {
			if l.address == address {
				for _, conn := range l.conns {
					_ = conn.Close()
				}
				l.conns = nil
			}
		}
	}
}

// reaches says whether two nodes can talk.
func (n *network) reaches(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut[from] && !n.cut[to]
}

func (l *pipeLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.queue:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeLayer) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeLayer) Addr() net.Addr { return pipeAddr(l.address) }

func (l *pipeLayer) Dial(address raft.ServerAddress, limit time.Duration) (net.Conn, error) {
	n := l.network
	n.mu.Lock()
	target, refused := n.nodes[string(address)], n.cut[string(address)] || n.cut[l.address]
	n.mu.Unlock()
	if target == nil || refused {
		return nil, errors.New("no route")
	}
	near, far := net.Pipe()
	select {
	case target.queue <- delay(far):
		n.mu.Lock()
		l.conns, target.conns = append(l.conns, near), append(target.conns, near)
		n.mu.Unlock()
		return delay(near), nil
	case <-target.closed:
		return nil, errors.New("connection refused")
	case <-time.After(limit):
		return nil, os.ErrDeadlineExceeded
	}
}

// list is a state machine that remembers every command.
type list struct {
	mu       sync.Mutex
	commands []string
}

func (l *list) Apply(entry *raft.Log) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commands = append(l.commands, string(entry.Data))
	return len(l.commands)
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.commands)
}

func (l *list) Snapshot() (raft.FSMSnapshot, error) { return listSnapshot(l.all()), nil }

func (l *list) Restore(file io.ReadCloser) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commands = nil
	return json.NewDecoder(file).Decode(&l.commands)
}

type listSnapshot []string

func (s listSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

func (s listSnapshot) Release() {}

// member is one node of a test cluster.
type member struct {
	*Replica
	config Config
	list   *list
	fatal  chan string
}

type cluster struct {
	t       *testing.T
	network *network
	members []*member
	// adjust changes a member's configuration before it is opened.
	adjust func(c *Config)
}

func newCluster(t *testing.T, size int, adjust func(c *Config)) *cluster {
	c := &cluster{t: t, network: newNetwork(), adjust: adjust}
	t.Cleanup(c.stopAll) // in the bubble, also when a test fails
	for i := range size {
		c.members = append(c.members, c.open(fmt.Sprintf("n%d", i), t.TempDir(), true))
	}
	return c
}

func (c *cluster) open(name, dir string, fresh bool) *member {
	c.t.Helper()
	m := &member{list: &list{}, fatal: make(chan string, 1)}
	address := name + ":7100/x"
	m.config = Config{
		ID: name + ".x", Address: address, Dir: dir, New: fresh, FSM: m.list, Stream: c.network.listen(address),
		Fatal: func(reason string) { m.fatal <- reason },
	}
	if c.adjust != nil {
		c.adjust(&m.config)
	}
	var err error
	if m.Replica, err = Open(m.config); err != nil {
		c.t.Fatalf("opening %s: %v", name, err)
	}
	return m
}

// form bootstraps and waits for a leader that has committed something.
func (c *cluster) form() *member {
	c.t.Helper()
	var servers []Server
	for _, m := range c.members {
		servers = append(servers, Server{ID: m.config.ID, Address: m.config.Address, Voter: true})
	}
	if err := c.members[0].Bootstrap(servers); err != nil {
		c.t.Fatal(err)
	}
	return c.leader()
}

// leader waits for a member that leads and commits.
func (c *cluster) leader() *member {
	c.t.Helper()
	var leader *member
	c.eventually("a leader that commits", func() bool {
		for _, m := range c.members {
			if m.Replica != nil && m.IsLeader() && c.network.reaches(m.config.Address, m.config.Address) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, err := m.Submit([]byte("probe")).Wait(ctx)
				cancel()
				if err == nil {
					leader = m
					return true
				}
			}
		}
		return false
	})
	return leader
}

// eventually waits for a condition, in virtual time, at most a minute of it.
func (c *cluster) eventually(what string, holds func() bool) {
	c.t.Helper()
	for range 6000 {
		if holds() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	c.t.Fatalf("never came: %s", what)
}

func (c *cluster) submit(m *member, data string) Applied {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	applied, err := m.Submit([]byte(data)).Wait(ctx)
	if err != nil {
		c.t.Fatalf("submitting %q: %v", data, err)
	}
	return applied
}

func (c *cluster) stop(m *member) {
	c.t.Helper()
	if m.Replica == nil {
		return
	}
	if err := m.Shutdown(context.Background()); err != nil {
		c.t.Errorf("stopping %s: %v", m.config.ID, err)
	}
	m.Replica = nil
}

func (c *cluster) stopAll() {
	c.t.Helper()
	for _, m := range c.members {
		c.stop(m)
	}
}

func (c *cluster) others(m *member) (others []*member) {
	for _, o := range c.members {
		if o != m {
			others = append(others, o)
		}
	}
	return others
}

// converged waits until all running members hold the same commands, and gives them.
func (c *cluster) converged() (commands []string) {
	c.t.Helper()
	c.eventually("the same commands everywhere", func() bool {
		commands = nil
		for _, m := range c.members {
			if m.Replica == nil {
				continue
			}
			if own := m.list.all(); commands == nil {
				commands = own
			} else if !slices.Equal(commands, own) {
				return false
			}
		}
		return true
	})
	return commands
}

func TestClusterLivesFailsOverAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		for _, m := range c.members {
			if !m.Empty() {
				t.Fatal("a new member is not empty")
			}
		}
		first := c.form()
		if first.Empty() {
			t.Error("a member with a log is empty")
		}
		applied := c.submit(first, "one")
		if first.AppliedIndex() != applied.Index {
			t.Errorf("applied index %d, the entry's %d", first.AppliedIndex(), applied.Index)
		}
		if err := first.Bootstrap([]Server{{ID: "other.x", Address: "other:1/x"}}); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("bootstrapping again: %v", err)
		}
		if _, err := c.others(first)[0].Submit([]byte("no")).Wait(t.Context()); !errors.Is(err, ErrNotApplied) || !errors.Is(err, ErrNotLeader) {
			t.Errorf("submitting to a follower: %v", err)
		}

		died := time.Now()
		c.stop(first)
		second := c.leader()
		if took := time.Since(died); took > 4*time.Second {
			t.Errorf("failover took %v", took)
		}
		if later := c.submit(second, "two"); later.Index <= applied.Index {
			t.Errorf("index went from %d to %d", applied.Index, later.Index)
		}
		for i, m := range c.members {
			if m == first {
				c.members[i] = c.open(fmt.Sprintf("n%d", i), m.config.Dir, false)
			}
		}
		commands := c.converged()
		if !slices.Contains(commands, "one") || !slices.Contains(commands, "two") {
			t.Errorf("commands after the restart of one: %q", commands)
		}

		c.stopAll()
		for i, m := range c.members {
			c.members[i] = c.open(fmt.Sprintf("n%d", i), m.config.Dir, false)
		}
		c.submit(c.leader(), "three")
		commands = c.converged()
		for _, want := range []string{"one", "two", "three"} {
			if !slices.Contains(commands, want) {
				t.Errorf("%q is missing after all restarted: %q", want, commands)
			}
		}
		c.stopAll() // the bubble fails if a goroutine is left
	})
}

// slow is a state machine with a queue before it.
type slow struct{ *list }

func (s slow) Apply(entry *raft.Log) any {
	<-time.After(10 * time.Millisecond)
	return s.list.Apply(entry)
}

// Shutdown with committed entries that wait for the state machine: every Wait ends and no goroutine is left (raft#498).
// Without endWith the library never answers them.
func TestShutdownAnswersEveryPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(c *Config) { c.FSM = slow{c.FSM.(*list)} })
		leader := c.form()
		var pending []*Pending
		for i := range 100 {
			pending = append(pending, leader.Submit(fmt.Appendf(nil, "%d", i)))
		}
		c.stop(leader)
		unknown := 0
		for _, p := range pending {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := p.Wait(ctx)
			cancel()
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				t.Fatal("an entry is never answered")
			case errors.Is(err, ErrUnknown):
				unknown++
			case err != nil && !errors.Is(err, ErrNotApplied):
				t.Errorf("answer %v", err)
			}
		}
		if unknown == 0 {
			t.Error("nothing was on its way")
		}
	})
}

func TestSnapshotAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(c *Config) { c.Snapshots = SnapshotPolicy{Trailing: 5} })
		m := c.form()
		for i := range 50 {
			c.submit(m, fmt.Sprint(i))
		}
		if err := m.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		index, members := m.AppliedIndex(), m.Membership()
		before := m.list.all()
		dir := m.config.Dir
		c.stop(m)
		if err := os.Mkdir(filepath.Join(dir, snapshotsName, "9-9-9.tmp"), 0o755); err != nil {
			t.Fatal(err)
		}
		m = c.open("n0", dir, false)
		c.members[0] = m
		if m.AppliedIndex() != index {
			t.Errorf("applied index is %d after the restart, was %d", m.AppliedIndex(), index)
		}
		if got := m.Membership(); got.Index != members.Index || !slices.Equal(got.Servers, members.Servers) {
			t.Errorf("membership is %v after the restart, was %v", got, members)
		}
		if !slices.Equal(m.list.all(), before) {
			t.Error("the state is another one after the restart")
		}
		if _, err := os.Stat(filepath.Join(dir, snapshotsName, "9-9-9.tmp")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the unfinished snapshot is still there: %v", err)
		}
		c.submit(c.leader(), "more")
		c.stopAll()
	})
}

func TestMembershipChangesAreConditional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		servers := c.members
		c.members = servers[:2]
		leader := c.form()
		c.members = servers
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		newcomer := servers[2].config
		before := leader.Membership()
		if err := leader.AddNonvoter(ctx, Server{ID: newcomer.ID, Address: newcomer.Address}, before.Index); err != nil {
			t.Fatal(err)
		}
		c.converged()
		if err := leader.Promote(ctx, newcomer.ID, before.Index); !errors.Is(err, ErrChanged) || !errors.Is(err, ErrNotApplied) {
			t.Errorf("a change for an old configuration: %v", err)
		}
		if err := leader.Promote(ctx, "nobody.x", 0); !errors.Is(err, ErrNotMember) {
			t.Errorf("promoting a stranger: %v", err)
		}
		if err := leader.Promote(ctx, newcomer.ID, leader.Membership().Index); err != nil {
			t.Fatal(err)
		}
		if err := leader.Transfer(ctx, newcomer.ID); err != nil {
			t.Fatal(err)
		}
		if got := c.leader(); got.config.ID != newcomer.ID {
			t.Errorf("leadership went to %s", got.config.ID)
		}
		if err := leader.Transfer(ctx, newcomer.ID); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower hands over: %v", err)
		}
		if err := servers[2].Demote(ctx, leader.config.ID, servers[2].Membership().Index); err != nil {
			t.Fatal(err)
		}
		if err := servers[2].Remove(ctx, leader.config.ID, servers[2].Membership().Index); err != nil {
			t.Fatal(err)
		}
		if got := len(servers[2].Servers()); got != 2 {
			t.Errorf("%d servers are left", got)
		}
		c.stopAll()
	})
}
