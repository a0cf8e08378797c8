package client

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

const (
	// handOverSuffix makes the name of the lock that says to whom is handed over.
	handOverSuffix = "/hand-over"
	// handOverLook is how often it is looked whether the candidate has come forward,
	// and handOverCall how often it is called.
	handOverLook = 100 * time.Millisecond
	handOverCall = time.Second
	// handOverCheck bounds the look at who leads afterwards.
	handOverCheck = 5 * time.Second
	// maxCandidate leaves room for what makes a task of it.
	maxCandidate = 235
)

// Election is an election of one leader among candidates, by the lock with its
// name. Candidates queue for it in order. It is safe for concurrent use, and also
// uses the lock called name + "/hand-over".
type Election struct {
	client    *Client
	name      string
	candidate string
}

// Election gives the election called name (up to 502 bytes, as of a lock), in
// which this side stands as candidate (1 to 235 bytes; "" is the Client's owner).
// Candidates should have different names. It sends nothing.
func (c *Client) Election(name, candidate string) *Election {
	if candidate == "" {
		candidate = c.owner
	}
	return &Election{c, name, candidate}
}

// Leader is who leads. The zero value is nobody.
type Leader struct {
	Candidate string
	Owner     string
	Value     string // as proclaimed
	Token     transport.Token
}

// Leadership is a won election: a lock that is held. The leader leads as long as
// its Context has not ended, and sends its Token with what it writes.
type Leadership struct {
	*Lock
	election *Election
}

// Campaign waits until this side is the leader, or ctx ends. Errors are those of
// Acquire. The value (up to 4,096 bytes) is what observers see at once.
func (e *Election) Campaign(ctx context.Context, value string) (*Leadership, error) {
	if err := validateCandidate(e.candidate); err != nil {
		return nil, fmt.Errorf("lock %.100q %w: %w", e.name, ErrNotAcquired, err)
	}
	campaign, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		lock   *Lock
		err    error
		called bool
	}
	results := make(chan result)
	stand := func(called bool, options ...AcquireOption) {
		lock, err := e.client.Acquire(campaign, e.name, append(options, Value(value), Task(e.task()))...)
		results <- result{lock, err, called}
	}
	calls := make(chan struct{})
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		e.hearCalls(campaign, calls)
	}()
	go stand(false)
	standing, called := 1, false
	var won *Lock
	var failure error
	for standing > 0 {
		select {
		case <-calls:
			if won == nil && !called {
				// It keeps its place beside this one, for the case that nothing comes of it.
				standing, called = standing+1, true
				go stand(true, Priority(transport.MaxPriority))
			}
		case r := <-results:
			standing--
			called = called && !r.called
			switch {
			case r.err != nil:
				failure = r.err // of one place; the other may be granted already, with the answer under way
			case won == nil || !won.Held():
				won = r.lock
				stop()
			default:
				_ = r.lock.Release(ctx) // what fails the Client settles by itself
			}
		}
	}
	stop()
	<-listening
	if won == nil {
		return nil, failure
	}
	return &Leadership{won, e}, nil
}

// task names one place of the candidate in the queue, for the others to read whose it is. Each is a task of its own: a
// candidate has two places when it is called, and may lead one election while it stands for others, which is no
// deadlock.
func (e *Election) task() string {
	return e.candidate + "#" + strconv.FormatUint(e.client.tasks.Add(1), 10)
}

// candidateOf is the inverse of task. Who stands by other means names its task as it likes.
func candidateOf(task string) string {
	if i := strings.LastIndexByte(task, '#'); i > 0 {
		if _, err := strconv.ParseUint(task[i+1:], 10, 64); err == nil {
			return task[:i]
		}
	}
	return task
}

func validateCandidate(candidate string) error {
	if len(candidate) > maxCandidate {
		return transport.NewError(transport.ErrInvalid, "candidate is longer than %d bytes", maxCandidate)
	}
	return transport.ValidateOwner("candidate", candidate)
}

// hearCalls tells whenever a leader wants to hand over to this candidate, until ctx
// ends. A call that is missed is repeated.
func (e *Election) hearCalls(ctx context.Context, calls chan<- struct{}) {
	name := e.name + handOverSuffix
	for event, err := range e.client.Watch(ctx, WatchQuery{Prefix: name}) {
		if err != nil {
			return
		}
		if event.Name != name || event.Kind != transport.EventGranted && event.Kind != transport.EventValue {
			continue
		}
		now, err := e.client.Calls().GetLock(ctx, name)
		if err != nil || len(now.Holders) == 0 || now.Holders[0].Value != e.candidate {
			continue
		}
		select {
		case calls <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
}

// Proclaim changes the leader's value, which observers are told.
func (l *Leadership) Proclaim(ctx context.Context, value string) error { return l.SetValue(ctx, value) }

// Resign gives the leadership up; it is Release. The first in the queue is next.
func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }

// HandOver makes the named candidate the next leader. It calls the candidate, who
// must be in Campaign, to the head of the queue, and resigns only when it stands
// there, so there is no moment with two leaders, and when ctx ends before, this
// side still leads and the error matches ErrNotAcquired. Afterwards it makes sure
// who leads: another candidate may, when the named one vanished in between, or led
// and has resigned already; the error matches ErrNotHeld then.
//
// It needs the priorities of the queue to be left alone: one who waits for the
// lock with the highest priority of all is not passed. A candidate that was called
// in vain stays at the head of the queue until it is the leader.
func (l *Leadership) HandOver(ctx context.Context, candidate string) error {
	if err := l.handOver(ctx, candidate); err != nil {
		return fmt.Errorf("handing %q over to %q: %w", l.Name(), candidate, err)
	}
	return nil
}

func (l *Leadership) handOver(ctx context.Context, candidate string) (err error) {
	if err := validateCandidate(candidate); err != nil {
		return err
	}
	if candidate == l.election.candidate {
		return transport.NewError(transport.ErrInvalid, "this candidate leads already")
	}
	looking, stop := l.within(ctx)
	defer stop()
	c := l.session.client
	call, err := c.Acquire(looking, l.Name()+handOverSuffix, Value(candidate))
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = call.Release(bounded) // what fails the Client settles by itself
	}()
	for called := time.Now(); ; {
		now, err := c.Calls().GetLock(looking, l.Name())
		if err == nil && len(now.Queue) > 0 && candidateOf(now.Queue[0].Task) == candidate {
			break
		}
		if err := sleep(looking, handOverLook); err != nil {
			return fmt.Errorf("%w: it did not come forward: %w", ErrNotAcquired, err)
		}
		if time.Since(called) >= handOverCall {
			called = time.Now()
			_ = call.SetValue(looking, candidate) // for one that was not listening before
		}
	}
	if err := l.Release(ctx); err != nil {
		return err
	}
	checking, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverCheck)
	defer cancel()
	now, err := c.Calls().GetLock(checking, l.Name())
	if err != nil {
		return fmt.Errorf("it was the next, but who leads now is not known: %w", err)
	}
	if len(now.Holders) == 0 || candidateOf(now.Holders[0].Task) != candidate {
		return transport.NewError(transport.ErrNotHeld, "it was the next, but does not lead now")
	}
	return nil
}

// Observe tells who leads: at once, and whenever that or the leader's value has
// changed. When changes follow each other quickly only the newest may be told. A
// node or connection that ends is not noticed. The error that is not nil is the
// last: the cause of ctx's end, ErrClosed, or a refusal that matches a code of
// package transport.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last Leader
		told := false
		look := func() (index uint64, on bool) {
			leader, index, err := e.look(ctx)
			switch {
			case err != nil:
				yield(Leader{}, fmt.Errorf("observing %q: %w", e.name, err))
				return 0, false
			case told && leader == last:
				return index, true
			}
			last, told = leader, true
			return index, yield(leader, nil)
		}
		index, on := look()
		if !on {
			return
		}
		// What happened in the entry that was read of is told once more, which shows nothing new.
		for event, err := range e.client.Watch(ctx, WatchQuery{Prefix: e.name, After: strconv.FormatUint(index, 10) + ".0"}) {
			if err != nil {
				yield(Leader{}, err)
				return
			}
			if event.Name != "" && event.Name != e.name {
				continue // another lock, whose name begins like this
			}
			if _, on := look(); !on {
				return
			}
		}
	}
}

// look reads who leads, and the log index that this is true of. It tries until it
// can, or ctx ends.
func (e *Election) look(ctx context.Context) (Leader, uint64, error) {
	answer, err := do[none, transport.LockResponse](ctx, e.client, getLock(e.name), nil)
	if err != nil {
		return Leader{}, 0, err
	}
	if len(answer.body.Holders) == 0 {
		return Leader{}, answer.index, nil
	}
	h := answer.body.Holders[0]
	return Leader{Candidate: candidateOf(h.Task), Owner: h.Owner, Value: h.Value, Token: h.Token}, answer.index, nil
}
