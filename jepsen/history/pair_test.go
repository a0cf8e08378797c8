package history

import (
	"strings"
	"testing"
)

func TestPair(t *testing.T) {
	ops := []Op{
		{Process: 0, Type: Invoke, F: Acquire},
		{Process: 1, Type: Invoke, F: Acquire},
		{Process: Nemesis, Type: Info, F: Fault},
		{Process: 0, Type: OK, F: Acquire, Token: 7},
		{Process: 0, Type: Info, F: Lost}, // between operations
		{Process: 0, Type: Invoke, F: Release},
		{Process: 0, Type: Info, F: Lost}, // and within one
		{Process: 1, Type: Info, F: Acquire},
		{Process: 2, Type: OK, F: Digest},
	}
	for i := range ops {
		ops[i].Index, ops[i].Time = i, 1
	}
	operations, err := Pair(ops)
	if err != nil || len(operations) != 3 {
		t.Fatalf("%v %+v", err, operations)
	}
	for i, want := range []Type{OK, Info, Info} {
		if got := operations[i].Outcome(); got != want {
			t.Errorf("operation %d is %s, not %s", i, got, want)
		}
	}
	if operations[0].Complete.Token != 7 || operations[2].End() != Forever || len(operations[2].Indexes()) != 1 {
		t.Errorf("%+v", operations)
	}
}

func TestPairRefusesWhatCannotBe(t *testing.T) {
	for want, ops := range map[string][]Op{
		"before its acquire": {{Type: Invoke, F: Acquire}, {Type: Invoke, F: Release}},
		"unknown outcome":    {{Type: Invoke, F: Acquire}, {Type: Info, F: Acquire}, {Type: Invoke, F: Release}},
		"has not begun":      {{Type: OK, F: Acquire}},
		"completes release":  {{Type: Invoke, F: Acquire}, {Type: OK, F: Release}},
		"unknown type":       {{Type: Invoke, F: Acquire}, {Type: "done", F: Acquire}},
		"stands alone":       {{Type: OK, F: Lost}},
		"is older":           {{Time: 2, Type: Invoke, F: Acquire}, {Time: 1, Type: OK, F: Acquire}},
		"has index":          {{Index: 1, Type: Invoke, F: Acquire}},
	} {
		for i := range ops {
			if want != "has index" {
				ops[i].Index = i
			}
		}
		if _, err := Pair(ops); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
