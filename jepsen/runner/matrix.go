package runner

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/nemesis"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// Matrix writes the runs in the files as Markdown tables, one for each kind of cluster: faults down, workloads across, and
// in each cell how many runs there were with how many operations, and which of them were not valid.
func Matrix(out io.Writer, files []string) error {
	type place struct{ fault, workload string }
	clusters := map[string]map[place]*cell{}
	err := each(files, func(l line) {
		name, at := clusterOf(l.Spec), place{l.Spec.Fault, l.Spec.Workload}
		if clusters[name] == nil {
			clusters[name] = map[place]*cell{}
		}
		if clusters[name][at] == nil {
			clusters[name][at] = &cell{}
		}
		clusters[name][at].add(l)
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		cells := clusters[name]
		var workloads []string // those that ran, in the order of the list
		faults := nemesis.Names()
		ran := slices.Collect(maps.Keys(cells))
		for _, w := range workload.All() {
			if slices.ContainsFunc(ran, func(p place) bool { return p.workload == w.Name() }) {
				workloads = append(workloads, w.Name())
			}
		}
		for _, p := range ran { // mixtures that were asked for by name
			if !slices.Contains(faults, p.fault) {
				faults = append(faults, p.fault)
			}
		}
		slices.Sort(faults[len(nemesis.Names()):])
		_, _ = fmt.Fprintf(out, "| %s | %s | time |\n|---|%s---|\n", name, strings.Join(workloads, " | "), strings.Repeat("---|", len(workloads)))
		for _, fault := range faults {
			row, took := "", time.Duration(0)
			for _, w := range workloads {
				c := cells[place{fault, w}]
				if c == nil {
					row += " – |"
					continue
				}
				row += " " + c.short() + " |"
				took += c.took
			}
			if took > 0 {
				_, _ = fmt.Fprintf(out, "| %s |%s %v |\n", fault, row, took.Round(time.Minute))
			}
		}
		_, _ = fmt.Fprintln(out)
	}
	return nil
}

// short is a cell in few letters: "3 × 5202" are three valid runs with so many operations together.
func (c *cell) short() string {
	text := fmt.Sprintf("%d × %d", c.runs, c.operations)
	if c.runs == 1 {
		text = fmt.Sprint(c.operations)
	}
	if c.invalid > 0 {
		text += fmt.Sprintf(" **%d invalid**", c.invalid)
	}
	if c.unknown > 0 {
		text += fmt.Sprintf(" **%d unknown**", c.unknown)
	}
	if c.lost > 0 {
		text += fmt.Sprintf(", %d lost, as it must", c.lost)
	}
	return text
}
