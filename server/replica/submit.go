package replica

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/hashicorp/raft"
)

// handOff is how long Raft's main loop may take to accept an entry: it is at its disk between two.
const handOff = 500 * time.Millisecond

// Applied is what became of an entry that was committed and applied here.
type Applied struct {
	Index    uint64 // of the entry in the log
	Response any    // what the state machine's Apply returned
}

// Pending is an entry on its way. Several goroutines may wait for it.
type Pending struct {
	done    chan struct{}
	applied Applied
	err     error
}

// Submit hands one entry to Raft, which takes up to half a second when the disk is busy; then the entry is on its way and
// Wait tells what became of it. The order in which Submits return is their order in the log. The caller must not change
// data afterwards. Safe for concurrent use.
func (r *Replica) Submit(data []byte) *Pending {
	p := &Pending{done: make(chan struct{})}
	future := r.raft.Apply(data, handOff)
	finish := func(handed bool) {
		defer close(p.done)
		err := future.Error()
		r.transfers.observe(err)
		if p.err = classify(err, handed); p.err == nil {
			p.applied = Applied{Index: future.Index(), Response: future.Response()}
		}
	}
	if endWith(future, r.ended) {
		go finish(true) // ends with Raft's answer, or with the replica
	} else {
		finish(false)
	}
	return p
}

// Wait gives the state machine's response, or an error that is ErrNotApplied or ErrUnknown. It ends with the context
// (ErrUnknown, and the context's error) and with the replica's shutdown, and may be called again.
func (p *Pending) Wait(ctx context.Context) (Applied, error) {
	select {
	case <-p.done:
		return p.applied, p.err
	default:
	}
	select {
	case <-p.done:
		return p.applied, p.err
	case <-ctx.Done():
		return Applied{}, fmt.Errorf("%w: waiting for the entry: %w", ErrUnknown, context.Cause(ctx))
	}
}

// endWith makes a future end when ended is closed: those that are on their way when Raft is shut down are otherwise
// never answered (raft#498; measured: up to 42 %), and whoever waits for them would never end. The library has the place
// for it in its futures and fills it in only some of them. It tells whether Raft's main loop was given the request: the
// answers that are ready at once are of another kind. Call it before anybody waits.
func endWith(future raft.Future, ended chan struct{}) (handed bool) {
	value := reflect.ValueOf(future)
	if value.Kind() != reflect.Pointer {
		return false
	}
	if place := value.Elem().FieldByName("ShutdownCh"); place.IsValid() && place.CanSet() && place.Type() == reflect.TypeOf(ended) {
		place.Set(reflect.ValueOf(ended))
	}
	return true
}

// await waits for one of the library's futures, at most until the context or the replica ends.
func (r *Replica) await(ctx context.Context, future raft.Future) error {
	if !endWith(future, r.ended) {
		return future.Error()
	}
	answer := make(chan error, 1)
	go func() { answer <- future.Error() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
