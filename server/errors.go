package server

import (
	"context"
	"errors"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// codes joins the state machine's codes, which are numbers that never change, to the words of the wire. Codes that are no
// refusals are not in it.
var codes = map[fsm.Code]transport.Code{
	fsm.Held:         transport.ErrHeld,
	fsm.Finished:     transport.ErrFinished,
	fsm.Mismatch:     transport.ErrRequestMismatch,
	fsm.SessionGone:  transport.ErrSessionGone,
	fsm.NotHeld:      transport.ErrNotHeld,
	fsm.ModeConflict: transport.ErrModeConflict,
	fsm.OverQuota:    transport.ErrQuota,
	fsm.Exhausted:    transport.ErrTokensExhausted,
	fsm.OwnSession:   transport.ErrInvalid,
	fsm.SameMode:     transport.ErrInvalid,
	fsm.Deadlock:     transport.ErrDeadlock,
	fsm.Delayed:      transport.ErrDelayed,
}

// sentences says for people what each refusal means.
var sentences = map[fsm.Code]string{
	fsm.Held:        "the lock is held or queued for by others",
	fsm.Finished:    "this request was finished or cancelled before; a new one needs a new number or key",
	fsm.Mismatch:    "this request number or key was used before with another body",
	fsm.SessionGone: "the session expired, was closed, or never was",
	fsm.NotHeld:     "this session holds no such grant",
	fsm.Exhausted:   "no token below 2^53 is left",
	fsm.OwnSession:  "this session belongs to one grant and takes no other requests",
	fsm.SameMode:    "mode is the one that the hold has already",
	fsm.Deadlock:    "waiting would be a deadlock: each of these waits for the next, and the last for the first",
	fsm.Delayed:     "the lock is free, but in its lock-delay after an unclean end",
}

// refusal turns a refusing outcome into an error of the wire; nil for an outcome that is none.
func refusal(out fsm.Outcome) error {
	code, refused := codes[out.Code]
	if !refused {
		return nil
	}
	e := transport.NewError(code, "%s", sentences[out.Code])
	switch out.Code {
	case fsm.Held:
		queue := int64(out.Waiting)
		e.Holders, e.QueueLength = holders(out.Holders), &queue
	case fsm.ModeConflict:
		e.Detail = "the lock " + quote(out.Name) + " is in use with another limit"
		e.Limit = int64(out.Limit)
	case fsm.OverQuota:
		e.Detail = "the quota is used up: " + string(out.Quota)
	case fsm.OwnSession:
		e.Field = "session"
	case fsm.SameMode:
		e.Field = "mode"
	case fsm.Delayed:
		e.RetryAfterMS = int64(out.Retry)
	case fsm.Deadlock:
		for _, s := range out.Cycle {
			e.Cycle = append(e.Cycle, transport.Step{Task: s.Task, Owner: s.Owner, WaitsFor: s.WaitsFor, HeldBy: s.HeldBy})
		}
	}
	return e
}

// wireError turns an error of the way into the log into one of the three kinds of answer (R14): not applied, or unknown.
func (n *Node) wireError(err error) error {
	var wire *transport.Error
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.Is(err, replica.ErrUnknown):
		return transport.NewError(transport.ErrUnknownOutcome, "the request was handed to the log and its outcome is not known: repeat it with the same number or key")
	case errors.Is(err, errUnjudged):
		return transport.NewError(transport.ErrOverloaded, "so much is expiring that there was no time to look at the request")
	case errors.Is(err, errQueueFull):
		return transport.NewError(transport.ErrOverloaded, "this node has too many requests waiting")
	case n.stopping():
		return transport.NewError(transport.ErrShuttingDown, "this node is stopping")
	case errors.Is(err, context.DeadlineExceeded):
		return transport.NewError(transport.ErrOverloaded, "the log did not take the request in time")
	}
	return n.notLeading()
}

func (n *Node) notLeading() error {
	return transport.NewError(transport.ErrNoLeader, "there is no leader that this node can reach")
}
