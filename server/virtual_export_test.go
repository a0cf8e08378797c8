package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// What the tests of whole clusters may do that nobody else can: put entries into a leader's log behind its back, and see
// how much was written.

// Stamp returns the stamp that an entry of the current beginning would have now, as this node knows it.
func (n *Node) Stamp() (stamp fsm.Stamp) {
	n.machine.Read(func(s *fsm.State) { stamp = fsm.Stamp{Begin: s.Schedule().Begin, Elapsed: s.Schedule().Elapsed} })
	return stamp
}

// PutEntry puts an entry into the log at this leader, whatever its stamp, and returns what came of it.
func (n *Node) PutEntry(ctx context.Context, e *fsm.Entry) (*fsm.Result, error) {
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	applied, err := n.replica.Submit(data).Wait(ctx)
	if err != nil {
		return nil, err
	}
	return applied.Response.(*fsm.Result), nil
}

// PutBegin begins this leader's term again behind its back.
func (n *Node) PutBegin(ctx context.Context) error {
	data, err := n.beginEntry()
	if err != nil {
		return err
	}
	_, err = n.replica.Submit(data).Wait(ctx)
	return err
}

// Snapshot returns this node's state as bytes, and its index.
func (n *Node) Snapshot() (index uint64, state []byte) {
	n.machine.Read(func(s *fsm.State) { index, state = s.Index(), s.Encode() })
	return index, state
}

// LastIndex is the index of the newest entry in this node's log.
func (n *Node) LastIndex() uint64 { return n.replica.LastIndex() }

// Term is the newest term that this node has heard of.
func (n *Node) Term() uint64 { return n.replica.Term() }

// Clock is the lease clock at the last entry, in ms.
func (n *Node) Clock() (clock uint64) {
	n.machine.Read(func(s *fsm.State) { clock = s.Clock() })
	return clock
}

// Due reports whether something in this node's state ends by itself some day, and whether the last entry left work over.
func (n *Node) Due() (due, backlog bool) {
	n.machine.Read(func(s *fsm.State) { due, backlog = s.Schedule().Due != ^uint64(0), s.Schedule().Backlog })
	return due, backlog
}

// CutSnapshot makes a snapshot and cuts the log.
func (n *Node) CutSnapshot(ctx context.Context) error { return n.replica.Snapshot(ctx) }

// Waiters is how many callers wait at this node.
func (n *Node) Waiters() int { return n.hub.count() }

// Voters are the ids of the voters that this node knows.
func (n *Node) Voters() (ids []string) {
	for _, s := range n.replica.Servers() {
		if s.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// Idle names the locks that nobody holds though somebody waits and no lock-delay keeps them: there must be none between
// entries (R5). It looks at single locks, so it is for tests without requests for several.
func (n *Node) Idle() (names []string) {
	n.machine.Read(func(s *fsm.State) {
		s.Locks("", "", s.Clock(), 1, func(l fsm.LockInfo) bool {
			if l.Held == 0 && l.Waiting > 0 && l.Delay == 0 {
				names = append(names, l.Name)
			}
			return true
		})
	})
	return names
}

// PostForwarded sends a request from this node to another as one that is passed on to the leader, whoever that is.
func (n *Node) PostForwarded(ctx context.Context, to *Node, path, body string) (status int, code string, err error) {
	address := to.config.own().Address
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", transport.TypeJSON)
	r.Header.Set(transport.HeaderForwarded, n.config.Name)
	response, err := n.port.HTTPClient(address, to.port.Self().Incarnation).Do(r)
	if err != nil {
		return 0, "", err
	}
	answer, err := io.ReadAll(response.Body)
	var problem struct{ Code string }
	err = errors.Join(err, json.Unmarshal(answer, &problem), response.Body.Close())
	return response.StatusCode, problem.Code, err
}

// Queued is how many requests wait in this node's state, once for each lock.
func (n *Node) Queued() (count int) {
	n.machine.Read(func(s *fsm.State) { _, _, _, count = s.Counts() })
	return count
}

// AwaitClaimed waits for a request as a call that claimed it under the leadership that began at this entry.
func (n *Node) AwaitClaimed(ctx context.Context, begin uint64, request fsm.Seq) error {
	what := wait{under: &leadership{begin: begin}, until: time.Now().Add(time.Minute)}
	_, err := n.await(&call{Context: ctx}, what, answer{outcome: fsm.Outcome{Request: request}})
	return err
}
