package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-lock/pawl/transport"
)

// Convert changes the mode of the lock without giving it up: to exclusive, or with
// the options Shared or Semaphore to shared; others mean nothing here. To shared it
// takes effect at once: from the call on others may share the lock, also when the
// answer is lost. To exclusive it waits, before the whole queue, until the other
// holders are gone or ctx ends; when another holder waits for the same, the error
// matches ErrDeadlock. Either way the lock has a new token then. After an error it
// is held as before, unless Err says that it was lost. The end of a maximum hold
// stays what it was.
//
// It is for locks of one name; ConvertOf is for one of several.
func (l *Lock) Convert(ctx context.Context, options ...AcquireOption) error {
	return l.ConvertOf(ctx, l.Name(), options...)
}

// ConvertOf converts one of several names.
func (l *Lock) ConvertOf(ctx context.Context, name string, options ...AcquireOption) error {
	wanted := transport.AcquireRequest{Locks: []transport.LockRequest{{Name: name, Mode: transport.ModeExclusive}}}
	for _, option := range options {
		option(&wanted)
	}
	if err := l.convert(ctx, wanted.Locks[0]); err != nil {
		return fmt.Errorf("converting %q: %w", name, err)
	}
	return nil
}

func (l *Lock) convert(ctx context.Context, wanted transport.LockRequest) error {
	if !slices.Contains(l.names, wanted.Name) {
		return transport.NewError(transport.ErrNotHeld, "it is none of the lock's names")
	}
	if err := l.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s := l.session
	number, _ := s.begin()
	request := &transport.ConvertRequest{
		Session: s.id, Request: number, Of: l.number, Token: l.TokenOf(wanted.Name), Name: wanted.Name, Mode: wanted.Mode, Limit: wanted.Limit,
	}
	if err := request.Validate(); err != nil {
		s.finish(number)
		return err
	}
	waiting, stop := l.within(ctx)
	defer stop()
	for {
		spec := call{path: "/v1/convert", repeatable: true, wait: left(ctx, longestWait)}
		request.WaitMS = spec.wait.Milliseconds()
		answer, err := do[transport.ConvertRequest, transport.AcquireResponse](waiting, s.client, spec, request)
		switch {
		case err == nil && answer.body.Granted:
			return l.converted(number, wanted, answer)
		case err == nil && ctx.Err() == nil:
			// Still queued: wait on. A server that answers too soon must not make this a hot loop (D11).
			_ = sleep(waiting, jitter(callSpacing)) // its end is seen by the next call
			continue
		case err == nil:
			err = context.Cause(ctx)
		case errors.Is(err, transport.ErrSessionGone):
			s.end(&LostError{Reason: ReasonExpired})
			return err
		case refused(err) && !answer.uncertain:
			s.finish(number)
			return err
		}
		l.unconvert(ctx, number)
		return err
	}
}

// converted takes the new token and mode over.
func (l *Lock) converted(number uint64, wanted transport.LockRequest, answer answer[transport.AcquireResponse]) error {
	s := l.session
	s.extend(answer.sent, duration(answer.body.LeaseMS))
	s.usable()
	s.mu.Lock()
	defer s.mu.Unlock()
	// The server forgets the number with the hold, or with the next conversion.
	s.finishLocked(number)
	if l.overdueLocked() {
		return l.err
	}
	if answer.body.Token == 0 {
		return transport.NewError(transport.ErrInternal, "the conversion has no token for %q", wanted.Name)
	}
	l.grants[wanted.Name] = transport.GrantedLock{Name: wanted.Name, Mode: wanted.Mode, Limit: wanted.Limit, Token: answer.body.Token}
	return nil
}

// unconvert takes a conversion back whose caller has given up. If it was made at
// this very moment, nobody knows the new token, so the lock is given up too.
func (l *Lock) unconvert(ctx context.Context, number uint64) {
	s := l.session
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	answer, err := do[transport.CancelRequest, transport.CancelResponse](bounded, s.client, call{path: "/v1/cancel", repeatable: true},
		&transport.CancelRequest{Session: s.id, Request: number})
	s.finish(number)
	if err == nil && !answer.uncertain && answer.body.State == transport.StateCancelled {
		return
	}
	s.mu.Lock()
	l.endLocked(&LostError{Reason: ReasonConversion})
	s.mu.Unlock()
	s.owe(debt{number: l.number, lock: l})
}

// Check asks the cluster whether the lock's token still counts (of the first name).
// It is for those who want to know at this moment, and proves nothing about the
// next: the storage must check the token.
func (l *Lock) Check(ctx context.Context) error {
	if _, err := l.session.client.Calls().Check(ctx, l.Name(), l.Token()); err != nil {
		return fmt.Errorf("checking %q: %w", l.Name(), err)
	}
	return nil
}

// SetValue changes what is kept with the hold for others to read: up to 4,096 bytes
// of UTF-8 without NUL. Of several names it changes each, one after the other.
func (l *Lock) SetValue(ctx context.Context, value string) error {
	for _, name := range l.names {
		if err := l.Err(); err != nil {
			return fmt.Errorf("setting the value of %q: %w", name, err)
		}
		request := &transport.ValueRequest{Session: l.session.id, Request: l.number, Token: l.TokenOf(name), Name: name, Value: &value}
		if err := request.Validate(); err != nil {
			return fmt.Errorf("setting the value of %q: %w", name, err)
		}
		if _, err := do[transport.ValueRequest, transport.ValueResponse](ctx, l.session.client, call{path: "/v1/value", repeatable: true, patience: patience}, request); err != nil {
			return fmt.Errorf("setting the value of %q: %w", name, err)
		}
	}
	return nil
}
