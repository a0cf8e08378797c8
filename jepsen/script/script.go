// Package script has the schedules that are written down: for each guard around the Raft library (R16) one that comes to a
// fault without it. Chance would hardly find them. What happened is judged by the harness's own checkers.
//
// With the guard each of them must be valid. A build with the tag unguarded can switch it off, by the variable PAWL_UNGUARDED:
// then the checkers must see the fault, or they would not see it elsewhere.
package script

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// All are the scripts.
func All() []runner.Script {
	return []runner.Script{oneIndex, staleRead, refusedAppend, halfVote, staleTail}
}

// ByName gives one of them.
func ByName(name string) (runner.Script, error) {
	var names []string
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return runner.Script{}, fmt.Errorf("there is no script %q; there are %v", name, names)
}

// lock is what clients ask for.
const lock = "a"

// patience is how long a step may take.
const patience = 20 * time.Second

// stage is where a script plays.
type stage struct {
	*virtual.Cluster
	ctx     context.Context
	history *history.History
	process int // the last one: each operation is a process of its own
}

// until waits, by steps that are short against everything that happens in a cluster.
func (s *stage) until(what string, is func() bool) error {
	for end := s.Now() + patience; !is(); {
		if s.Now() > end {
			return fmt.Errorf("%s: not within %v", what, patience)
		}
		if err := s.Sleep(s.ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// leader waits until a node is at work as leader.
func (s *stage) leader() (node int, err error) {
	err = s.until("a leader", func() bool { node = s.Leader(); return node >= 0 })
	return node, err
}

// lead hands leadership to a node.
func (s *stage) lead(node int) error {
	if s.Leads(node) {
		return nil
	}
	if err := s.inStep(); err != nil {
		return err
	}
	if err := s.Transfer(node); err != nil {
		return err
	}
	return s.until("the new leader", func() bool { return s.Leads(node) })
}

// inStep waits until all nodes that run have the same index.
func (s *stage) inStep() error {
	return s.until("nodes in step", func() bool {
		var first uint64
		for i := range s.Size() {
			if !s.Runs(i) {
				continue
			}
			index, _, err := s.Digest(s.ctx, i)
			if err != nil || index == 0 || first != 0 && index != first {
				return false
			}
			first = index
		}
		return true
	})
}

// afoot has one node hand leadership to the other, with the message that does it held back. When this returns, the first one has given
// up and leads on. No entry may be written meanwhile: it would be refused.
func (s *stage) afoot(from, to int) (*pawltest.Hold, error) {
	if err := s.inStep(); err != nil {
		return nil, err
	}
	hold := s.Hold(from, to, virtual.TimeoutNow)
	go func() { _ = s.Transfer(to) }() // ends within 5 s, and is not done
	if err := s.until("a hand-over on its way", func() bool { return hold.Count() > 0 }); err != nil {
		return nil, err
	}
	if err := s.Sleep(s.ctx, 6*time.Second); err != nil {
		return nil, err
	}
	if !s.Leads(from) {
		return nil, errors.New("the leader has not gone on to lead")
	}
	return hold, nil
}

// others are the two nodes beside one.
func others(node int) (int, int) { return (node + 1) % 3, (node + 2) % 3 }

// call sends one message to a node, once.
func (s *stage) call(client, node int, path string, body, into any) (index uint64, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	method := http.MethodGet
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		method, in = http.MethodPost, bytes.NewReader(data)
	}
	c := s.Client(client)
	r, err := http.NewRequestWithContext(ctx, method, c.Endpoints[node]+path, in)
	if err != nil {
		return 0, err
	}
	response, err := c.HTTP.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		return 0, transport.ReadError(response)
	}
	index, _ = strconv.ParseUint(response.Header.Get(transport.HeaderIndex), 10, 64)
	return index, json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(into)
}

// record is an operation that a call makes. Its outcome is unknown unless the call says that it was surely not applied.
func (s *stage) record(op history.Op, call func(op *history.Op) error) error {
	op.Type = history.Invoke
	s.history.Add(op)
	err := call(&op)
	var refusal *transport.Error
	switch {
	case err == nil:
		op.Type = history.OK
	case op.F == history.Look, errors.As(err, &refusal) && refusal.Applied == transport.AppliedNo:
		op.Type, op.Error = history.Fail, err.Error()
	default:
		op.Type, op.Error = history.Info, err.Error()
	}
	s.history.Add(op)
	return err
}

// grant is what was granted.
type grant struct {
	process int
	session string
	token   transport.Token
	name    string
}

// ttl is that of all leases: nobody renews them.
const ttl = 10 * time.Second

// acquire asks a node for a lock, once, without waiting.
func (s *stage) acquire(client, node int, name string) (g grant, err error) {
	s.process++
	g = grant{process: s.process, name: name}
	return g, s.record(history.Op{Process: g.process, F: history.Acquire, Lock: name, Mode: transport.ModeExclusive}, func(op *history.Op) error {
		sent := s.Now()
		var got transport.AcquireResponse
		_, err := s.call(client, node, "/v1/acquire", transport.AcquireRequest{Name: name, Owner: fmt.Sprint("client", client), TTLMS: ttl.Milliseconds()}, &got)
		if err != nil {
			return err
		}
		g.session, g.token = got.Session, got.Token
		op.Token = uint64(got.Token)
		op.Lease = sent + time.Duration(got.LeaseMS)*time.Millisecond*998/1000
		return nil
	})
}

// release gives it back.
func (s *stage) release(client, node int, g grant) error {
	return s.record(history.Op{Process: g.process, F: history.Release, Lock: g.name, Token: uint64(g.token)}, func(*history.Op) error {
		var got transport.ReleaseResponse
		_, err := s.call(client, node, "/v1/release", transport.ReleaseRequest{Session: g.session, Token: g.token}, &got)
		return err
	})
}

// turn is an acquire and a release.
func (s *stage) turn(client, node int, name string) error {
	g, err := s.acquire(client, node, name)
	if err != nil {
		return err
	}
	if err := s.Sleep(s.ctx, time.Millisecond); err != nil { // or nobody ever believed in it
		return err
	}
	return s.release(client, node, g)
}

// look asks a node who holds a lock.
func (s *stage) look(client, node int, name string) error {
	s.process++
	return s.record(history.Op{Process: s.process, F: history.Look, Lock: name}, func(op *history.Op) error {
		var got transport.LockResponse
		index, err := s.call(client, node, "/v1/lock?"+url.Values{"name": {name}}.Encode(), nil, &got)
		if err != nil {
			return err
		}
		op.Log = index
		for _, h := range got.Holders {
			op.Token = uint64(h.Token)
		}
		return nil
	})
}

// digest records the state of a node.
func (s *stage) digest(node int) (index uint64, err error) {
	s.process++
	return index, s.record(history.Op{Process: s.process, F: history.Digest, Node: fmt.Sprintf("n%d", node+1)}, func(op *history.Op) error {
		index, op.Note, err = s.Digest(s.ctx, node)
		op.Log = index
		return err
	})
}

// begin makes the stage. The leader of the cluster has been at work, and everybody knows what it did.
func begin(ctx context.Context, c *virtual.Cluster, h *history.History) (s *stage, leader int, err error) {
	s = &stage{Cluster: c, ctx: ctx, history: h}
	if leader, err = s.leader(); err != nil {
		return nil, 0, err
	}
	if err := s.turn(0, leader, lock); err != nil {
		return nil, 0, err
	}
	return s, leader, s.inStep()
}
