package replica

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// The kinds of answer of R14 that are not "done". Every error of Pending.Wait is one of these two.
var (
	// ErrNotApplied: the entry is surely not in the log and never will be; it is safe to submit it anywhere again.
	ErrNotApplied = errors.New("not applied")
	// ErrUnknown: the entry may or may not be committed, now or later.
	ErrUnknown = errors.New("outcome unknown")
)

// Why an entry was not applied or a call was refused; from Submit they come wrapped with ErrNotApplied.
var (
	// ErrNotLeader: this node does not lead, or no longer surely.
	ErrNotLeader = errors.New("not the leader")
	// ErrTransferring: the leader is handing its leadership over.
	ErrTransferring = errors.New("leadership is being handed over")
	// ErrBusy: Raft's main loop did not take the entry in time.
	ErrBusy = errors.New("raft did not take the entry in time")
	// ErrStopped: the replica is stopping or has stopped.
	ErrStopped = errors.New("replica has stopped")
	// ErrNoQuorum: no majority of voters answered a read round.
	ErrNoQuorum = errors.New("no majority of voters answered")
	// ErrChanged: the configuration is not the one the change was made for.
	ErrChanged = errors.New("membership has changed meanwhile")
	// ErrNotEmpty: a cluster cannot be formed on a node that has state.
	ErrNotEmpty = errors.New("this node already has state")
	// ErrNotMember: the server is not in the configuration.
	ErrNotMember = errors.New("not a member")
)

// Why a data directory was refused.
var (
	// ErrInUse: another process has the directory open.
	ErrInUse = errors.New("in use by another process")
	// ErrDamaged: the files cannot be trusted.
	ErrDamaged = errors.New("damaged")
)

// classify is the one table from the library's errors to answers. handed tells whether Raft's main loop took the entry:
// a stop before that is a definite no, a stop after it says nothing.
func classify(err error, handed bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return fmt.Errorf("%w: %w", ErrNotApplied, ErrNotLeader)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNotApplied, ErrTransferring)
	case errors.Is(err, raft.ErrEnqueueTimeout) && !handed:
		return fmt.Errorf("%w: %w", ErrNotApplied, ErrBusy)
	case errors.Is(err, raft.ErrRaftShutdown) && !handed:
		return fmt.Errorf("%w: %w", ErrNotApplied, ErrStopped)
	case errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("%w: %w", ErrUnknown, ErrStopped)
	}
	// Leadership lost, a store error on the leader, a restore, and whatever a later version invents: the entry may be
	// on a disk and come back.
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}
