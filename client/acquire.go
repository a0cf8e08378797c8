package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

const (
	// longestWait is how long one call waits before it is repeated: the server
	// wants to hear of a waiter at least every 30 s.
	longestWait = 25 * time.Second
	// cancelTimeout is how long an acquire that gives up waits for its cancel; after
	// that the cancel goes on without it.
	cancelTimeout = 500 * time.Millisecond
)

// AcquireOption changes one acquire.
type AcquireOption func(*transport.AcquireRequest)

// Shared asks for the shared mode.
func Shared() AcquireOption {
	return func(r *transport.AcquireRequest) {
		for i := range r.Locks {
			r.Locks[i].Mode = transport.ModeShared
		}
	}
}

// Semaphore asks for the shared mode with at most n holders, 1 to 1,000,000. All
// who use the lock should name the same number.
func Semaphore(n int64) AcquireOption {
	return func(r *transport.AcquireRequest) {
		for i := range r.Locks {
			r.Locks[i].Mode, r.Locks[i].Limit = transport.ModeShared, n
		}
	}
}

// Task names the unit of work that asks, 1 to 256 bytes. By default it is that of
// the lock whose context the acquire is made under, or a new one: see Lock.Context.
func Task(task string) AcquireOption {
	return func(r *transport.AcquireRequest) { r.Task = task }
}

// Priority has the request stand before those of lower priority in the queue:
// -1000 to 1000, 0 by default. Those with a low one can wait for ever.
func Priority(priority int64) AcquireOption {
	return func(r *transport.AcquireRequest) { r.Priority = priority }
}

// MaxHold ends the hold after that long (500 ms to 24 h, in whole milliseconds),
// whatever the renewals: the lock is then lost with ReasonMaxHold.
func MaxHold(most time.Duration) AcquireOption {
	return func(r *transport.AcquireRequest) { r.MaxHoldMS = wholeMilliseconds(most) }
}

// LockDelay keeps the locks from everybody for that long (up to 24 h, in whole
// milliseconds) after the hold has ended other than by Release or Close, for
// resources that cannot check tokens.
func LockDelay(delay time.Duration) AcquireOption {
	return func(r *transport.AcquireRequest) { r.LockDelayMS = wholeMilliseconds(delay) }
}

// Value keeps up to 4,096 bytes of UTF-8 without NUL with the hold, for others to
// read; see Lock.SetValue.
func Value(value string) AcquireOption {
	return func(r *transport.AcquireRequest) { r.Value = value }
}

// wholeMilliseconds gives what the wire carries, and something that no bound
// admits when that would have to be rounded.
func wholeMilliseconds(d time.Duration) int64 {
	if d%time.Millisecond != 0 {
		return -1
	}
	return d.Milliseconds()
}

// Acquire acquires the lock called name (1 to 512 bytes of UTF-8 without control
// characters) and waits for it in the server's queue until ctx ends. Either it
// returns a lock that is held, or an error that matches ErrNotAcquired and, when
// ctx ended, its error; the request is then taken back, in the background if the
// server cannot confirm it within 500 ms. When the deadline of ctx came, it is asked
// meanwhile who has the lock: see WaitError. The lock outlives ctx: it is kept until it
// is released or lost.
func (c *Client) Acquire(ctx context.Context, name string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, []string{name}, true, options)
}

// TryAcquire is Acquire without waiting for other holders: when there are any, the
// error matches ErrHeld. It tries for at most 10 s to reach the cluster.
func (c *Client) TryAcquire(ctx context.Context, name string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, []string{name}, false, options)
}

// AcquireAll acquires all of 1 to 64 distinct names at once, or none; each has a
// token of its own.
func (c *Client) AcquireAll(ctx context.Context, names []string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, names, true, options)
}

// TryAcquireAll is AcquireAll without waiting, like TryAcquire.
func (c *Client) TryAcquireAll(ctx context.Context, names []string, options ...AcquireOption) (*Lock, error) {
	return c.acquire(ctx, names, false, options)
}

// Do calls work while it holds the lock. The context that work gets is the lock's,
// and ends when ctx ends too; the lock is kept until work has returned or panicked.
// The error is work's, joined by that of the release.
func (c *Client) Do(ctx context.Context, name string, work func(context.Context) error, options ...AcquireOption) (err error) {
	lock, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	defer func() {
		// ctx may have ended; the release must still be sent.
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, lock.Release(releasing))
	}()
	inner, cancel := lock.within(ctx)
	defer cancel()
	return work(inner)
}

// within gives the lock's context, which ends with ctx too, and has its deadline.
func (l *Lock) within(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, end := context.WithCancelCause(l.Context())
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	release := context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		inner, release = context.WithDeadline(inner, deadline)
	}
	return inner, func() { stop(); release(); end(context.Canceled) }
}

// acquire asks for all names under one request number.
func (c *Client) acquire(ctx context.Context, names []string, waits bool, options []AcquireOption) (*Lock, error) {
	request := &transport.AcquireRequest{}
	for _, name := range names {
		request.Locks = append(request.Locks, transport.LockRequest{Name: name})
	}
	for _, option := range options {
		option(request)
	}
	began := time.Now()
	lock, err := c.acquireRequest(ctx, request, waits)
	if err != nil {
		what := fmt.Sprintf("locks %.100q", names)
		if len(names) == 1 {
			what = fmt.Sprintf("lock %.100q", names[0])
		}
		if waits && ctx.Err() != nil && !refused(err) && !errors.Is(err, ErrUnavailable) {
			err = fmt.Errorf("it was not granted before the time was over: %w", err)
		}
		err = fmt.Errorf("%s %w: %w", what, ErrNotAcquired, err)
	}
	if c.hooks.Acquire != nil {
		c.hooks.Acquire(slices.Clone(names), time.Since(began), err)
	}
	return lock, err
}

func (c *Client) acquireRequest(ctx context.Context, request *transport.AcquireRequest, waits bool) (*Lock, error) {
	// Checked before there is a session, so that a bad name sends nothing at all.
	request.Session, request.Request = "-", 1
	if err := request.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	step := c.step(ctx, request.Task)
	request.Task = step.task.id
	lock, err := c.acquireStep(ctx, step, request, waits)
	if err != nil {
		step.end()
	}
	return lock, err
}

func (c *Client) acquireStep(ctx context.Context, step *step, request *transport.AcquireRequest, waits bool) (*Lock, error) {
	if !waits {
		bounded, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w: %w", ErrUnavailable, errPatience))
		defer cancel()
		ctx = bounded
	}
	leave := func() {}
	for {
		s, err := c.session(ctx)
		if err != nil {
			return nil, err
		}
		leave()
		asked := *request
		lock, err := s.acquire(ctx, step, &asked, waits)
		if err == nil {
			return lock, nil
		}
		if !c.running() {
			// The server may have been quicker to end the session than we the call.
			return nil, fmt.Errorf("%w: %w", ErrClosed, err)
		}
		finished := errors.Is(err, transport.ErrFinished)
		switch {
		case ctx.Err() != nil && finished:
			return nil, context.Cause(ctx)
		case ctx.Err() != nil || !s.over() && !finished:
			return nil, err
		}
		// The session was lost while we waited in it: wait again in a new one. Or the
		// request is finished without our doing: we were cut off for longer than its
		// wait was kept for us, or than its maximum hold lasted; ask under a new number.
		// The pause keeps a server that does so at once from being hammered (D11).
		if err := sleep(ctx, jitter(callSpacing)); err != nil {
			return nil, err
		}
		// While the cluster has no leader its lease clock stands still, so that what we
		// lost lives on there for a while: our wait must not stand in our own way.
		leave = func() {
			if s.unreached() {
				bounded, cancel := context.WithTimeout(ctx, cancelTimeout)
				defer cancel()
				_ = s.cancel(bounded, asked.Request) // otherwise it ends with its session
			}
		}
	}
}

// acquire asks under a new number until there is a final answer or ctx ends, and
// leaves nothing behind when it fails. The request gets the number.
func (s *session) acquire(ctx context.Context, step *step, request *transport.AcquireRequest, waits bool) (*Lock, error) {
	request.Session = s.id
	request.Request, request.Done = s.begin()
	for {
		spec := call{path: "/v1/acquire", repeatable: true, during: s.alive}
		if waits {
			spec.wait = left(ctx, longestWait)
			request.WaitMS = spec.wait.Milliseconds()
		}
		began := time.Now()
		answer, err := do[transport.AcquireRequest, transport.AcquireResponse](ctx, s.client, spec, request)
		switch {
		case err == nil && answer.body.Granted:
			lock, err := s.granted(ctx, step, *request, answer)
			if err != nil && !s.takeBack(ctx, request.Request) {
				// The server may hold it still, for this very task: asking anew could be a
				// deadlock with ourselves.
				return nil, transport.NewError(transport.ErrUnknownOutcome, "what was granted too late could not be given back yet: %v", err)
			}
			return lock, err
		case err == nil && !waits:
			s.takeBack(ctx, request.Request)
			return nil, transport.NewError(transport.ErrHeld, "the server queued a request that does not wait")
		case err == nil:
			if ctx.Err() != nil {
				return nil, s.giveUp(ctx, request, context.Cause(ctx))
			}
			// Still queued. A server that answers sooner than asked must not make this
			// a hot loop (D11).
			if early := min(spec.wait, callSpacing) - time.Since(began); early > 0 {
				_ = sleep(ctx, jitter(early)) // its end, or the session's, is seen by the next call
			}
		case errors.Is(err, transport.ErrSessionGone):
			s.end(&LostError{Reason: ReasonExpired})
			return nil, err
		case refused(err) && !answer.uncertain:
			s.finish(request.Request)
			return nil, err
		case waits:
			return nil, s.giveUp(ctx, request, err)
		default:
			s.takeBack(ctx, request.Request)
			return nil, err
		}
	}
}

// giveUp takes a request back that has waited, and adds to the error who is in the way if the time for it was over. It asks
// while the cancel is under way, so that nobody waits longer for it.
func (s *session) giveUp(ctx context.Context, request *transport.AcquireRequest, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
		s.takeBack(ctx, request.Request)
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	told := make(chan []transport.Holder, 1)
	go func() { told <- s.client.inTheWay(bounded, request) }()
	s.takeBack(ctx, request.Request)
	if holders := <-told; len(holders) > 0 {
		return &WaitError{Holders: holders, ended: err}
	}
	return err
}

// inTheWay gives who has the locks of the request: the first few, as far as they are told before ctx ends.
func (c *Client) inTheWay(ctx context.Context, request *transport.AcquireRequest) (holders []transport.Holder) {
	const enough = 4 // one more than the error's text names
	for _, lock := range request.Locks {
		answer, err := do[none, transport.LockResponse](ctx, c, getLock(lock.Name), nil)
		if err != nil {
			return holders
		}
		for _, holder := range answer.body.Holders {
			// It may have been granted to this very request, which is being taken back. Other Clients of the program can
			// have the same owner and task.
			if holder.Task != request.Task || holder.Session == "" || !strings.HasPrefix(request.Session, holder.Session) {
				holders = append(holders, holder)
			}
		}
		if len(holders) >= enough {
			return holders
		}
	}
	return holders
}

// refused says whether the error is an answer that leaves nothing to take back.
func refused(err error) bool {
	var refusal *transport.Error
	return errors.As(err, &refusal) && refusal.Applied == transport.AppliedNo && !errors.Is(err, ErrUnavailable)
}

// granted makes the Lock, unless the session was lost, or the maximum hold was over,
// while the answer was under way: then so is the grant.
func (s *session) granted(ctx context.Context, step *step, request transport.AcquireRequest, answer answer[transport.AcquireResponse]) (*Lock, error) {
	lock := newLock(ctx, s, step, request, answer.body.Locks)
	for _, wanted := range request.Locks {
		if lock.grants[wanted.Name].Token == 0 {
			return nil, transport.NewError(transport.ErrInternal, "the grant has no token for %q", wanted.Name)
		}
	}
	s.extend(answer.sent, duration(answer.body.LeaseMS))
	s.usable()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	if answer.body.HoldMS != nil {
		until := answer.sent + safely(duration(*answer.body.HoldMS))
		if s.client.now() >= until {
			return nil, transport.NewError(transport.ErrFinished, "its maximum hold was over before the answer came")
		}
		lock.boundLocked(until)
	}
	s.unfinished[request.Request] = lock
	lock.watchLoss(s.client.hooks.Lost)
	return lock, nil
}

// takeBack cancels a request whose caller has given up: also one that was granted
// at this very moment (A02). It does not end with ctx, which has ended already. It
// says whether nothing is left of the request; otherwise it is settled later.
func (s *session) takeBack(ctx context.Context, number uint64) bool {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if s.over() {
		return true // everything in it has ended, or will with its TTL
	}
	if err := s.cancel(bounded, number); err != nil {
		s.owe(debt{number: number})
		return false
	}
	return true
}
