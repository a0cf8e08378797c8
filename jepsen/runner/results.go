package runner

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/report"
)

// Faults counts the faults that were made.
func (r Result) Faults() (count int) {
	for _, n := range r.Nemesis.Begun {
		count += n
	}
	return count
}

// Report makes the folder of the run.
func (r Result) Report(dir string) error {
	expected, fails := "", ""
	if r.Expected.Outcome == check.Invalid {
		expected, fails = r.Expected.Why, r.Expected.Checker+mustFail
	}
	headline := ""
	if r.Outcome() == check.Valid {
		headline = r.Headline()
	}
	return report.Write(dir, report.Run{
		Title: r.Spec.Workload + " under " + r.Spec.Fault,
		Facts: []report.Fact{
			{Name: "cluster", Value: fmt.Sprintf("%s, %d nodes, %d clients", r.Spec.Cluster, r.Spec.Nodes, r.Spec.Clients)},
			{Name: "store", Value: r.Spec.Store},
			{Name: "lasted", Value: r.Took.Round(time.Second).String() + ", which took " + r.Real.Round(10*time.Millisecond).String()},
			{Name: "faults", Value: fmt.Sprint(r.Faults())},
			{Name: "not possible here", Value: strings.Join(r.Nemesis.Unsupported, ", ")},
		},
		Command: r.Spec.Command(), Clients: r.Spec.Clients + 1, Ops: r.Ops, Verdicts: r.Verdicts, Logs: r.Logs, Expected: expected, MustFail: fails, Headline: headline,
	})
}

// line is what is kept of a run among others.
type line struct {
	Spec        Spec            `json:"spec"`
	Outcome     check.Outcome   `json:"outcome"`
	Operations  int             `json:"operations"`
	Took        time.Duration   `json:"took"`
	Real        time.Duration   `json:"real"`
	Faults      map[string]int  `json:"faults"`
	Unsupported []string        `json:"unsupported,omitempty"`
	Expected    check.Outcome   `json:"expected,omitempty"`
	Lost        int64           `json:"lost,omitempty"` // updates
	Verdicts    []check.Verdict `json:"verdicts,omitempty"`
}

// Operations is how many clients have begun.
func (r Result) Operations() (n int) {
	for _, op := range r.Ops {
		if op.Type == history.Invoke {
			n++
		}
	}
	return n
}

// Append adds the run, as one line, to a file, which it makes when it is not there.
func (r Result) Append(path string) error {
	l := line{
		Spec: r.Spec, Outcome: r.Outcome(), Took: r.Took, Real: r.Real, Faults: r.Nemesis.Begun,
		Operations: r.Operations(), Unsupported: r.Nemesis.Unsupported, Expected: r.Expected.Outcome, Lost: r.Expected.Figures[lostUpdates],
	}
	for _, v := range r.Verdicts {
		if v.Outcome != check.Valid {
			l.Verdicts = append(l.Verdicts, v)
		}
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return cmp.Or(err, file.Close())
}

// cell is what runs of one kind came to.
type cell struct {
	runs, valid, invalid, unknown, operations, faults int
	took                                              time.Duration
	// Runs that must fail and did, or did not and are no less valid; they are not among valid.
	failed, spared int
	lost           int64 // updates
}

func (c *cell) add(l line) {
	c.runs++
	switch {
	case l.Outcome == check.Valid && (l.Expected == check.Invalid || l.Lost > 0):
		c.failed++
	case l.Outcome == check.Valid && l.Expected == check.Valid:
		c.spared++
	case l.Outcome == check.Valid:
		c.valid++
	case l.Outcome == check.Invalid:
		c.invalid++
	default:
		c.unknown++
	}
	c.operations += l.Operations
	c.took += l.Took
	c.lost += l.Lost
	for _, n := range l.Faults {
		c.faults += n
	}
}

func (c *cell) String() string {
	var parts []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(c.valid, "%d valid", c.valid)
	add(c.invalid, "**%d invalid**", c.invalid)
	add(c.unknown, "%d unknown", c.unknown)
	add(c.failed, "%d had to lose updates and did: %d", c.failed, c.lost)
	add(c.spared, "%d had to lose updates and did not, which may be chance", c.spared)
	return strings.Join(parts, ", ")
}

// Table writes the runs in the files as a Markdown table: a row for each kind of cluster, workload and fault.
func Table(out io.Writer, files []string) error {
	type kind struct{ cluster, workload, fault string }
	cells := map[kind]*cell{}
	total := &cell{}
	err := each(files, func(l line) {
		k := kind{clusterOf(l.Spec), l.Spec.Workload, l.Spec.Fault}
		if cells[k] == nil {
			cells[k] = &cell{}
		}
		cells[k].add(l)
		total.add(l)
	})
	if err != nil {
		return err
	}
	keys := slices.SortedFunc(maps.Keys(cells), func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.workload, b.workload), cmp.Compare(a.fault, b.fault))
	})
	_, _ = fmt.Fprintln(out, "| cluster | workload | fault | runs | time | faults | operations | verdict |\n|---|---|---|---|---|---|---|---|")
	row := func(k kind, c *cell) {
		_, _ = fmt.Fprintf(out, "| %s | %s | %s | %d | %v | %d | %d | %v |\n", k.cluster, k.workload, k.fault, c.runs, c.took.Round(time.Minute), c.faults, c.operations, c)
	}
	for _, k := range keys {
		row(k, cells[k])
	}
	row(kind{"all", "", ""}, total)
	return nil
}

// each reads the runs in the files.
func each(files []string, do func(line)) error {
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			var l line
			if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
				_ = file.Close()
				return fmt.Errorf("%s: %w", name, err)
			}
			do(l)
		}
		if err := cmp.Or(scanner.Err(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func clusterOf(s Spec) string { return fmt.Sprintf("%s, %d nodes", s.Cluster, s.Nodes) }
