package fsm

import (
	"errors"
	"fmt"
)

// Version is the version of the entry and snapshot formats that this code writes.
const Version = 1

// FeatureLevel is the highest feature level that this code supports (R13).
const FeatureLevel = 1

// maxEntry bounds an entry in bytes: the proposer stops at 64 KiB of commands, one command more may follow, and a
// command (64 locks with names of 512 bytes) is below 64 KiB.
const maxEntry = 256 << 10

// MaxCommands bounds the commands of one entry (R2).
const MaxCommands = 256

// ErrNewer is wrapped when bytes were written by a newer version of Pawl. The node must stop: a crash is better than two
// nodes that disagree (R2).
var ErrNewer = errors.New("written by a newer version of pawl: upgrade this node")

// Entry is one entry of the Raft log: either the beginning of a leader's term or a stamped list of commands, which may
// be empty (a tick).
type Entry struct {
	Begin    *Begin // set: a begin-term entry, and the rest is empty
	Stamp    Stamp
	Wall     uint64 // unix ms at the leader, for people to read; nothing is decided by it
	Commands []Command
}

// Stamp is the leader's claim of time passed (R3).
type Stamp struct {
	Begin   uint64 // index of the leader's begin-term entry
	Elapsed uint64 // ms on its monotonic clock since it learned that this was applied
}

// Begin is what a leader says when it begins its work. Cluster and Floor count only in the first of a cluster's life.
type Begin struct {
	Cluster ID
	Floor   uint64 // tokens stay above it
	Node    string // who leads, and where its API is, for people and clients
	URL     string
	Limits  Limits
}

// Limits are the quotas of the state machine. They travel in the log, because Apply may not look at a node's own
// configuration (R1). Zero means the default.
type Limits struct {
	Sessions   uint64 // live sessions, those of sessionless acquires included
	Tombstones uint64 // ended sessions of Idempotency-Keys that are still remembered
	Requests   uint64 // holds and waits of one session
	Waiters    uint64 // requests that wait for one lock
	Multiple   uint64 // of these, requests for several locks
	Holders    uint64 // holds of one shared lock
}

// DefaultLimits are in force until a leader says otherwise.
var DefaultLimits = Limits{
	Sessions: 200_000, Tombstones: 500_000, Requests: 10_000, Waiters: 10_000, Multiple: 256, Holders: 100_000,
}

func (l *Limits) fields(c *coder) {
	for _, v := range []*uint64{&l.Sessions, &l.Tombstones, &l.Requests, &l.Waiters, &l.Multiple, &l.Holders} {
		c.bounded(v, 10_000_000, "quota")
	}
}

func (l Limits) withDefaults() Limits {
	pick := func(v *uint64, d uint64) {
		if *v == 0 {
			*v = d
		}
	}
	d := DefaultLimits
	pick(&l.Sessions, d.Sessions)
	pick(&l.Tombstones, d.Tombstones)
	pick(&l.Requests, d.Requests)
	pick(&l.Waiters, d.Waiters)
	pick(&l.Multiple, d.Multiple)
	pick(&l.Holders, d.Holders)
	return l
}

func (b *Begin) fields(c *coder) {
	c.id(&b.Cluster)
	c.bounded(&b.Floor, MaxFloor, "floor")
	c.text(&b.Node, 256, "node")
	c.text(&b.URL, 1024, "url")
	b.Limits.fields(c)
}

func (e *Entry) fields(c *coder) {
	begins := e.Begin != nil
	c.flag(&begins)
	if c.err != nil {
		return
	}
	if begins {
		if c.reading {
			e.Begin = &Begin{}
		}
		e.Begin.fields(c)
		return
	}
	c.number(&e.Stamp.Begin)
	c.number(&e.Stamp.Elapsed)
	c.number(&e.Wall)
	list(c, &e.Commands, MaxCommands, "commands", (*coder).command)
}

// Encode returns the bytes of an entry: version, body, checksum. It fails only on what is above the format's caps.
func (e *Entry) Encode() ([]byte, error) {
	c := coder{buf: make([]byte, 0, 256)}
	version := uint64(Version)
	c.number(&version)
	e.fields(&c)
	if err := c.finish(); err != nil {
		return nil, fmt.Errorf("encoding entry: %w", err)
	}
	if len(c.buf) > maxEntry {
		return nil, fmt.Errorf("encoding entry: %w: %d bytes", errMalformed, len(c.buf))
	}
	return seal(c.buf), nil
}

// DecodeEntry is the reverse of Encode. It never panics, whatever the bytes are. A command that this version does not
// know and may skip is left as nil in Commands.
func DecodeEntry(b []byte) (*Entry, error) {
	body, err := unseal(b)
	if err != nil {
		return nil, fmt.Errorf("decoding entry: %w", err)
	}
	c := coder{reading: true, buf: body}
	if err := c.version(); err != nil {
		return nil, fmt.Errorf("decoding entry: %w", err)
	}
	e := &Entry{}
	e.fields(&c)
	if err := c.finish(); err != nil {
		return nil, fmt.Errorf("decoding entry: %w", err)
	}
	return e, nil
}

func (c *coder) version() error {
	var v uint64
	c.number(&v)
	if c.err == nil && v > Version {
		c.err = fmt.Errorf("format version %d: %w", v, ErrNewer)
	}
	if c.err == nil && v == 0 {
		c.fail("format version 0")
	}
	return c.err
}
