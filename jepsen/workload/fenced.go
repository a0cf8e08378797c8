package workload

import (
	"context"
	"errors"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// fenced reads, changes and writes a register under a lock.
type fenced struct {
	name      string // "" is fenced
	unchecked bool
}

// unfenced is the same with a storage that does not look at stamps. Under client pauses it must fail: that proves that
// the harness can see a fault.
func unfenced() fenced { return fenced{name: "unfenced", unchecked: true} }

func (w fenced) Name() string {
	if w.name == "" {
		return "fenced"
	}
	return w.name
}

func (w fenced) Locks() []string { return []string{w.Name() + "/a", w.Name() + "/b"} }

func (w fenced) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask { return ask{names: []string{pickOne(e, w.Locks())}} }, func(ctx context.Context, h *hold) {
		name := h.op.Lock
		s := h.stamps(w.unchecked, name)
		rows, ok := s.read(ctx, history.Read)
		if !ok {
			return
		}
		if !h.prepare(ctx) {
			return
		}
		op := history.Op{F: history.Write, Previous: last(rows[0]), Value: e.value()}
		s.write(ctx, op, [][]int64{{op.Value}})
	})
}

func (w fenced) Final(ctx context.Context, e *Env) {
	for _, name := range w.Locks() {
		e.finalRow(ctx, name, func(op *history.Op, row []int64) { op.Value = last(row) })
	}
}

func (w fenced) MustFail() string {
	if w.unchecked {
		return check.LostUpdates{}.Name()
	}
	return ""
}

// last is the value of a register, which nobody has written yet when it is 0.
func last(row []int64) int64 {
	if len(row) == 0 {
		return 0
	}
	return row[len(row)-1]
}

// stamps are those of a hold for the rows that it protects.
type stamps struct {
	h         *hold
	names     []string
	stamper   *fence.Stamper
	unchecked bool
}

// stamps gives the stamps for rows that are named as the locks are.
func (h *hold) stamps(unchecked bool, names ...string) *stamps {
	return &stamps{h: h, names: names, stamper: fence.NewStamper(h.lock), unchecked: unchecked}
}

// next stamps an operation; sent are the stamps that the storage shall look at.
func (s *stamps) next(op *history.Op) (sent []fence.Stamp) {
	for _, name := range s.names {
		sent = append(sent, s.stamper.NextOf(name))
	}
	op.Lock, op.Locks = s.h.op.Lock, s.h.op.Locks
	if op.Lock != "" {
		op.Token = sent[0].Token
	}
	op.Sequence = sent[0].Sequence
	if s.unchecked {
		return nil
	}
	return sent
}

// read records a read of the rows.
func (s *stamps) read(ctx context.Context, f string) (rows [][]int64, ok bool) {
	e := s.h.e
	op := history.Op{F: f}
	sent := s.next(&op)
	op = e.begin(op)
	rows, err := e.Store.Read(ctx, s.names, sent)
	if err != nil {
		e.end(op, history.Fail, stale(err)) // a read that failed has read nothing
		return nil, false
	}
	for _, row := range rows {
		op.Value = last(row)
		op.Values = append(op.Values, row...)
	}
	if len(rows) == 1 && len(op.Values) < 2 {
		op.Values = nil
	}
	e.end(op, history.OK, nil)
	return rows, true
}

// write records a write of the rows.
func (s *stamps) write(ctx context.Context, op history.Op, rows [][]int64) {
	e := s.h.e
	sent := s.next(&op)
	op = e.begin(op)
	err := e.Store.Write(ctx, s.names, sent, rows)
	switch {
	case err == nil:
		e.end(op, history.OK, nil)
	case errors.Is(err, fence.ErrStale), errors.Is(err, ErrUnwritten):
		e.end(op, history.Fail, stale(err))
	default:
		e.end(op, history.Info, err)
	}
}

var errStale = errors.New("stale")

// stale gives a refusal the one word that checkers know.
func stale(err error) error {
	if errors.Is(err, fence.ErrStale) {
		return errStale
	}
	return err
}

// finalRow records the last read of a row.
func (e *Env) finalRow(ctx context.Context, name string, set func(*history.Op, []int64)) {
	op := e.begin(history.Op{F: history.Final, Lock: name, Note: "row"})
	rows, err := e.Store.Read(ctx, []string{name}, nil)
	if err != nil {
		e.end(op, history.Fail, err)
		return
	}
	set(&op, rows[0])
	e.end(op, history.OK, nil)
}

// lockset adds elements to sets, which are read and written whole.
type lockset struct{ ordinary }

func (lockset) Name() string    { return "lockset" }
func (lockset) Locks() []string { return []string{"lockset/a"} }

// mostElements bounds the set: it is copied with every write.
const mostElements = 20_000

func (w lockset) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask { return ask{names: []string{pickOne(e, w.Locks())}} }, func(ctx context.Context, h *hold) {
		s := h.stamps(false, h.op.Lock)
		// The read is no operation of its own: adding is.
		var op history.Op
		rows, err := e.Store.Read(ctx, s.names, s.next(&op))
		if err != nil || len(rows[0]) >= mostElements {
			return
		}
		if !h.prepare(ctx) {
			return
		}
		value := e.value()
		s.write(ctx, history.Op{F: history.Add, Value: value}, [][]int64{append(rows[0], value)})
	})
}

func (w lockset) Final(ctx context.Context, e *Env) {
	for _, name := range w.Locks() {
		e.finalRow(ctx, name, func(op *history.Op, row []int64) { op.Values = row })
	}
}
