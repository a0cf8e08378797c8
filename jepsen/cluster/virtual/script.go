package virtual

import (
	"bytes"
	"slices"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
)

// What follows is for schedules that are written down, step by step, because chance would not find them in years.

// Message is a kind of Raft's messages.
type Message int

// The kinds.
const (
	Append    Message = iota // entries, or what tells of commits
	Heartbeat                // an append of nothing
	Vote                     // asks for one, or for a pre-vote
	Snapshot
	TimeoutNow // hands leadership over
	Answer     // to any of them
)

// Raft's first byte of each request.
var requests = map[byte]Message{0: Append, 1: Vote, 2: Snapshot, 3: TimeoutNow, 4: Vote}

// kindOf tells what a Write carries, as Raft's transport makes one Write of each request and of each answer. HTTP and
// handshakes begin with other bytes.
func kindOf(m pawltest.Message) (Message, bool) {
	if len(m.Data) == 0 {
		return 0, false
	}
	if m.Answer { // an empty error, in msgpack
		return Answer, m.Data[0] == 0xa0
	}
	kind, known := requests[m.Data[0]]
	// The field and its value, in msgpack: only heartbeats follow no entry.
	if kind == Append && bytes.Contains(m.Data, []byte("PrevLogEntry\x00")) {
		kind = Heartbeat
	}
	return kind, known
}

// Hold keeps back the Raft messages of these kinds from one node to the other, and what follows them on their connections,
// until it is released.
func (c *Cluster) Hold(from, to int, kinds ...Message) *pawltest.Hold {
	sender, receiver := c.nodeName(from), c.nodeName(to)
	return c.test.Network.Hold(func(m pawltest.Message) bool {
		if m.From != sender || m.To != receiver {
			return false
		}
		kind, known := kindOf(m)
		return known && slices.Contains(kinds, kind)
	})
}

// CrashAtVote kills a node before it writes a term or a vote, after so many other such writes.
func (c *Cluster) CrashAtVote(node, after int) { c.disks[node].crash(replica.WritingVote, after) }

// FailAppend has a node's next write of the log fail, and no other.
func (c *Cluster) FailAppend(node int) { c.disks[node].fail(replica.WritingLog) }

// Leads says whether a node is at work as leader.
func (c *Cluster) Leads(node int) bool {
	n := c.node(node)
	return n != nil && n.Leads()
}
