package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// transfers notices that Raft says "leadership is being handed over" when nobody hands anything over: its flag can stay
// set for ever, and then this node refuses every write as leader (raft#696). Only a restart clears it.
type transfers struct {
	patience time.Duration // two election times: the library's own limit is one
	fatal    func(reason string)

	mu      sync.Mutex
	running int
	ended   time.Time // when the last one ended, or never
}

func (t *transfers) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
}

func (t *transfers) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	t.ended = time.Now()
}

// observe looks at the answer to an entry.
func (t *transfers) observe(err error) {
	if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		return
	}
	t.mu.Lock()
	stuck := t.running == 0 && time.Since(t.ended) > t.patience
	t.mu.Unlock()
	if stuck {
		t.fatal("raft refuses writes for a hand-over of leadership that ended long ago: only a restart helps")
	}
}

// Transfer hands leadership to the voter with this id, or to the one that is furthest when it is empty. It blocks until
// this node no longer leads, at most about one election time (then it fails and this node leads on), or until the
// context ends. Use it on the way out, or when an operator asks.
func (r *Replica) Transfer(ctx context.Context, to string) error {
	if !r.IsLeader() {
		return ErrNotLeader
	}
	var target raft.Server
	if to != "" {
		for _, server := range r.raft.GetConfiguration().Configuration().Servers {
			if string(server.ID) == to && server.Suffrage == raft.Voter {
				target = server
			}
		}
		if target.ID == "" {
			return fmt.Errorf("handing leadership to %s: %w", to, ErrNotMember)
		}
	}
	r.transfers.begin()
	var future raft.Future
	if to == "" {
		future = r.raft.LeadershipTransfer()
	} else {
		future = r.raft.LeadershipTransferToServer(target.ID, target.Address)
	}
	handed := endWith(future, r.ended)
	answer := make(chan error, 1)
	wait := func() {
		err := future.Error()
		r.transfers.end()
		answer <- err
	}
	if handed {
		go wait() // the library ends a transfer by itself; with the replica at the latest
	} else {
		wait()
	}
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("handing leadership over: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("handing leadership over: %w", context.Cause(ctx))
	}
}
