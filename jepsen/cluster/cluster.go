// Package cluster is what workloads run on and faults act on.
package cluster

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// ErrUnsupported is the error of a fault that this kind of cluster cannot make.
var ErrUnsupported = errors.New("this kind of cluster cannot do that")

// BrokenOff says that a run is over before its time: its context has ended with a cause of its own, and was not just
// cancelled. Faults are healed and processes ended then, and nobody waits for more.
func BrokenOff(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded)
}

// Client is a place that operations come from: a host of its own, which can be cut off, with a clock of its own.
type Client struct {
	Endpoints []string
	HTTP      *http.Client
	Clock     func() time.Duration // for client.WithClock
	// Point is called by workloads between two instructions where a pause would hurt: it blocks while the client is
	// paused. Real processes are stopped for real instead, and have a Point that does nothing.
	Point func(ctx context.Context)
}

// Cluster is a cluster of nodes 0 … Size()-1 with clients 0 … n-1. Faults are made by one goroutine at a time; all else is
// safe for concurrent use. A fault that the kind cannot make is ErrUnsupported.
type Cluster interface {
	Kind() string // virtual, processes, containers
	Size() int
	// Now is the time since the cluster began to run, and Sleep waits on the same clock: in virtual time neither is real.
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
	Client(i int) Client

	// Leader is the node that leads, -1 when none is known.
	Leader() int
	// Ready waits until every node that runs serves.
	Ready(ctx context.Context) error
	// Digest gives the last applied index of a node and a digest of its state there: equal indexes must have equal digests.
	Digest(ctx context.Context, node int) (index uint64, digest string, err error)
	// Logs gives what the nodes have logged, for the checks that look for panics and races.
	Logs() map[string]string

	// Kill ends a node without good-byes, Stop as an operator would; Start starts it unless it runs. Runs says whether it
	// does: a node that ended itself, because its disk failed or its data is damaged, does not.
	Kill(node int) error
	Stop(node int) error
	Start(node int) error
	Runs(node int) bool
	Pause(node int) error
	Resume(node int) error
	PauseClient(client int) error
	ResumeClient(client int) error
	// Cut holds what goes from one host to the other; nodes are named 0 … Size()-1, client i is Size()+i.
	Cut(from, to int) error
	Delay(from, to int, delay, jitter time.Duration) error
	// Lose has a share of the packets be lost, 0 to 1; which of them comes from the seed.
	Lose(from, to int, share float64, seed uint64) error
	// Heal ends all cuts, delays and losses.
	Heal() error
	Transfer(to int) error
	// Disk sets how a node's fsync behaves: slower by so much, failing, or hanging. DiskFine ends it.
	Disk(node int, d Disk, delay time.Duration) error
	// Wipe removes the data of a node that does not run; Damage changes some of it.
	Wipe(node int) error
	Damage(node int, seed uint64) error
	// StepClock changes a node's wall clock, or a client's (Size()+i).
	StepClock(host int, by time.Duration) error

	Close() error
}

// Disk is how a disk behaves.
type Disk int

// How disks behave.
const (
	DiskFine Disk = iota
	DiskSlow
	DiskFails
	DiskHangs
	DiskFull
)

// Apart is a Cluster whose clients can work in processes of their own, which PauseClient stops.
type Apart interface {
	Cluster
	// Spawn starts the harness's own program at the host of client i, with these arguments and, on its standard input,
	// this text; the input is closed when ctx ends, and then the program is to end. It returns when it has. The error
	// says that it ended earlier, or badly, or had to be killed.
	Spawn(ctx context.Context, i int, arguments []string, input []byte) error
}
