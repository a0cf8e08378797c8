package workload

import (
	"context"
	"fmt"
	"slices"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// several moves money between accounts under the locks of two, and looks at all of them under the locks of all.
type several struct{ ordinary }

// each account's balance in the beginning. Rows are kept as the difference to it.
const each = 100

func (several) Name() string { return "several" }
func (several) Locks() []string {
	return []string{"several/a", "several/b", "several/c", "several/d"}
}

func (w several) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask {
		if e.one(4) {
			return ask{names: w.Locks()}
		}
		return ask{names: some(e, w.Locks(), 2)}
	}, func(ctx context.Context, h *hold) {
		names := make([]string, 0, len(h.op.Locks))
		for _, g := range h.op.Locks {
			names = append(names, g.Name)
		}
		if len(names) > 2 {
			h.balances(ctx)
			return
		}
		from, to := names[0], names[1]
		slices.Sort(names) // the storage takes its marks in one order
		s := h.stamps(false, names...)
		var op history.Op
		rows, err := e.Store.Read(ctx, names, s.next(&op))
		if err != nil {
			return
		}
		if !h.prepare(ctx) {
			return
		}
		amount := int64(1 + e.Rand.IntN(10))
		changed := [][]int64{{last(rows[0]) - amount}, {last(rows[1]) + amount}}
		if names[0] != from {
			changed = [][]int64{{last(rows[0]) + amount}, {last(rows[1]) - amount}}
		}
		s.write(ctx, history.Op{F: history.Transfer, Value: amount, Note: fmt.Sprint(from, ">", to)}, changed)
	})
}

// balances records what all accounts have.
func (h *hold) balances(ctx context.Context) {
	h.work(ctx, most/4)
	names := several{}.Locks()
	s := h.stamps(false, names...)
	op := history.Op{F: history.Read}
	sent := s.next(&op)
	op = h.e.begin(op)
	rows, err := h.e.Store.Read(ctx, names, sent)
	if err != nil {
		h.e.end(op, history.Fail, stale(err))
		return
	}
	op.Values = balances(rows)
	h.e.end(op, history.OK, nil)
}

func balances(rows [][]int64) (values []int64) {
	for _, row := range rows {
		values = append(values, each+last(row))
	}
	return values
}

func (w several) Final(ctx context.Context, e *Env) {
	op := e.begin(history.Op{F: history.Final, Note: "balances"})
	rows, err := e.Store.Read(ctx, w.Locks(), nil)
	if err != nil {
		e.end(op, history.Fail, err)
		return
	}
	op.Values = balances(rows)
	e.end(op, history.OK, nil)
}
