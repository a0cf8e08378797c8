package history

import (
	"testing"
	"time"
)

// What several processes have recorded is one history in order of time, and each process's own order stays.
func TestMerge(t *testing.T) {
	now := time.Duration(0)
	h := New(func() time.Duration { return now }, 6)
	var told []int
	h.Tee(func(op Op) { told = append(told, op.Index) })
	for _, now = range []time.Duration{10, 30} {
		h.Add(Op{Process: 0})
	}
	before := h.Ops()
	h.Merge([]Op{{Index: 0, Time: 10, Process: 1, Type: Invoke}, {Index: 1, Time: 10, Process: 1, Type: OK}, {Index: 2, Time: 40, Process: 1}})
	var processes []int
	for i, op := range h.Ops() {
		if op.Index != i {
			t.Errorf("operation %d has index %d", i, op.Index)
		}
		processes = append(processes, op.Process)
	}
	if got := h.Ops(); len(got) != 5 || got[1].Type != Invoke || got[2].Type != OK || processes[3] != 0 || processes[4] != 1 {
		t.Errorf("merged: %+v", got)
	}
	if len(told) != 2 || told[1] != 1 || before[1].Time != 30 {
		t.Errorf("told of %v; what was given before is now %+v", told, before)
	}
	if !h.Whole() {
		t.Error("not whole")
	}
	if h.Merge(make([]Op, 2)); h.Whole() {
		t.Error("whole, although not all had room")
	}
}
