package check

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Digests finds two nodes whose states differ at the same index of the log.
type Digests struct {
	// Nodes is how many there are: all of them must have said their digest at the same index at least once. 0 asks for
	// no more than two.
	Nodes int
}

// Name is "digests".
func (Digests) Name() string { return "digests" }

// Check looks once at each digest.
func (d Digests) Check(ops []history.Op) Verdict {
	v := Verdict{Checker: d.Name(), Outcome: Valid, Figures: map[string]int64{}}
	first := map[uint64]history.Op{}
	nodes := map[uint64]map[string]bool{}
	together := 0
	for _, op := range ops {
		if op.F != history.Digest || op.Type == history.Invoke || op.Type == history.Fail || op.Error != "" {
			continue
		}
		v.Figures["digests"]++
		other, found := first[op.Log]
		if !found {
			first[op.Log], nodes[op.Log] = op, map[string]bool{}
		} else if other.Note != op.Note {
			v.invalid([]int{other.Index, op.Index}, "at index %d, %s and %s have different states", op.Log, other.Node, op.Node)
		} else if other.Node != op.Node {
			v.Figures["compared"]++
		}
		nodes[op.Log][op.Node] = true
		together = max(together, len(nodes[op.Log]))
	}
	if v.Outcome == Valid && v.Figures["compared"] > 0 && together < d.Nodes {
		v.Outcome, v.Why = Unknown, fmt.Sprintf("only %d of %d nodes were compared at one index", together, d.Nodes)
	}
	return v.over("compared")
}

// Logs finds panics, data races and runtime errors in what the nodes have logged.
type Logs struct {
	// Texts are by the name of the node or program.
	Texts map[string]string
}

// bad is how the Go runtime begins to tell of what must never be. (A line that is logged begins with a time: that
// somebody's error mentions a panic is none.)
var bad = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE|unexpected fault address|SIGSEGV|runtime: |\[signal SIG|http: panic serving|.* http: panic serving).*$`)

// Name is "logs".
func (Logs) Name() string { return "logs" }

// Check does not look at the history.
func (l Logs) Check([]history.Op) Verdict {
	v := Verdict{Checker: l.Name(), Outcome: Valid, Figures: map[string]int64{"logs": int64(len(l.Texts))}}
	for _, name := range slices.Sorted(maps.Keys(l.Texts)) {
		text := l.Texts[name]
		v.Figures["lines"] += int64(strings.Count(text, "\n"))
		for _, line := range bad.FindAllString(text, 100) {
			v.invalid(nil, "%s: %.300s", name, line)
		}
	}
	return v.over("lines")
}
