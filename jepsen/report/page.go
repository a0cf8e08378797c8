package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

const (
	mostFailures = 4  // that are shown in full
	mostRows     = 60 // of the operations that show a failure
	mostFaults   = 100
)

// page is what the template is given.
type page struct {
	Run
	Outcome    check.Outcome
	Headline   string
	Counts     string
	Verdicts   []verdict
	Failures   []failure
	Timeline   template.HTML
	Left       []string
	Latencies  template.URL
	Rates      template.URL
	Faults     []faultRow
	MoreFaults int
	LogFiles   []string
	Legend     []legend
}

type verdict struct {
	check.Verdict
	FigureText, Badge string
}

// failure is the part of the history that shows why a checker is not content.
type failure struct {
	Checker, Why string
	Outcome      check.Outcome
	Timeline     template.HTML
	Left         []string
	Rows         []row
	MoreRows     int
}

type row struct {
	Index                                           int
	Time, Who, Type, F, Lock, Token, Detail, Colour string
}

type faultRow struct{ From, For, Note string }

type legend struct{ Colour, Name string }

func (r Run) writePage(w io.Writer) error {
	operations, err := history.Pair(r.Ops)
	if err != nil {
		operations = nil // the checkers say so
	}
	beliefs := check.Beliefs(r.Ops)
	p := page{Run: r, Outcome: r.Outcome(), Counts: count(operations, r.length())}
	p.Headline = map[check.Outcome]string{
		check.Valid: "valid", check.Invalid: "INVALID", check.Unknown: "unknown: not a pass",
	}[p.Outcome]
	if r.Headline != "" {
		p.Headline = r.Headline
	}
	for _, outcome := range []check.Outcome{check.Invalid, check.Unknown, check.Valid} {
		for _, v := range r.Verdicts {
			if v.Outcome == outcome {
				p.Verdicts = append(p.Verdicts, verdict{v, figures(v.Figures), r.badge(v)})
				if len(v.Shown) > 0 && len(p.Failures) < mostFailures {
					p.Failures = append(p.Failures, r.failure(v, operations, beliefs))
				}
			}
		}
	}
	c := r.timeline(operations, beliefs, 0, r.length(), nil)
	p.Timeline, p.Left = c.draw(), c.left
	if p.Latencies, err = r.latencies(operations); err != nil {
		return err
	}
	if p.Rates, err = r.rates(operations); err != nil {
		return err
	}
	for _, f := range r.faults() {
		if len(p.Faults) == mostFaults {
			p.MoreFaults++
			continue
		}
		p.Faults = append(p.Faults, faultRow{clock(f.from), (f.to - f.from).Round(time.Millisecond).String(), f.note})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Logs)) {
		p.LogFiles = append(p.LogFiles, logFile(name))
	}
	p.Legend = []legend{{barOK, "done"}, {barFail, "refused"}, {barInfo, "unknown, or never completed"}, {"#d6454526", "a fault"}}
	return pageTemplate.Execute(w, p)
}

// failure shows the Ops of a verdict, and what went on around them.
func (r Run) failure(v check.Verdict, operations []history.Operation, beliefs []check.Belief) failure {
	f := failure{Checker: v.Checker, Why: v.Why, Outcome: v.Outcome}
	show := shown{map[int]bool{}, map[string]bool{}, map[check.Belief]bool{}}
	tokens := map[history.Granted]bool{}
	from, to := history.Forever, time.Duration(0)
	for _, i := range v.Shown {
		if i < 0 || i >= len(r.Ops) {
			continue
		}
		op := r.Ops[i]
		show.ops[i], show.lock[op.Lock] = true, true
		tokens[history.Granted{Name: op.Lock, Token: op.Token}] = true
		if op.F != history.Final { // it comes long after what it shows
			from, to = min(from, op.Time), max(to, op.Time)
		}
		if len(f.Rows) == mostRows {
			f.MoreRows++
			continue
		}
		f.Rows = append(f.Rows, r.row(op))
	}
	// The holds themselves, also when only what was done under them is shown.
	for _, b := range beliefs {
		if show.ops[b.Index] || tokens[history.Granted{Name: b.Lock, Token: b.Token}] {
			show.hold[b], show.lock[b.Lock] = true, true
			from, to = min(from, b.From), max(to, b.Until)
		}
	}
	if from > to {
		return f
	}
	margin := max((to-from)/20, time.Millisecond)
	c := r.timeline(operations, beliefs, max(from-margin, 0), to+margin, &show)
	f.Timeline, f.Left = c.draw(), c.left
	return f
}

func (r Run) row(op history.Op) row {
	row := row{
		Index: op.Index, Time: clock(op.Time), Type: string(op.Type), F: op.F, Lock: op.Lock, Detail: detail(op),
		Who: fmt.Sprint("process ", op.Process), Colour: holder(r.client(op.Process)),
	}
	if op.Process == history.Nemesis {
		row.Who, row.Colour = "nemesis", "#c53030"
	}
	if op.Token != 0 {
		row.Token = fmt.Sprint(op.Token)
	}
	return row
}

// detail is what an Op says beyond what every one does.
func detail(op history.Op) string {
	var parts []string
	add := func(name string, value any, there bool) {
		if there {
			parts = append(parts, fmt.Sprintf("%s %v", name, value))
		}
	}
	if len(op.Locks) > 0 {
		for _, g := range op.Locks {
			add(g.Name, g.Token, true)
		}
	}
	add("lock", op.Lock, op.Lock != "")
	add("mode", op.Mode, op.Mode == "shared")
	add("limit", op.Limit, op.Limit != 0)
	add("token", op.Token, op.Token != 0)
	add("session", op.Session, op.Session != "")
	add("request", op.Request, op.Request != 0)
	add("sequence", op.Sequence, op.Sequence != 0)
	written := op.F == history.Write || op.F == history.Add || op.F == history.Transfer
	read := (op.F == history.Read || op.F == history.Final) && op.Type == history.OK && op.Note != history.Free
	add("value", op.Value, op.Value != 0 || written || read && op.Values == nil)
	add("previous", op.Previous, op.F == history.Write)
	if len(op.Values) > 12 {
		add("values", fmt.Sprintf("%v… (%d)", op.Values[:12], len(op.Values)), true)
	} else {
		add("values", op.Values, op.Values != nil)
	}
	add("lease until", clock(op.Lease), op.Lease != 0)
	add("index", op.Log, op.Log != 0)
	add("node", op.Node, op.Node != "")
	add("error:", op.Error, op.Error != "")
	add("note:", op.Note, op.Note != "")
	return strings.Join(parts, ", ")
}

// badge is the outcome of a verdict in a word or two.
func (r Run) badge(v check.Verdict) string {
	if r.MustFail != "" && v.Checker == r.MustFail {
		return "failed, as it must"
	}
	return string(v.Outcome)
}

// figures puts those of a verdict in a line, in order.
func figures(figures map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, figures[name]))
	}
	return strings.Join(parts, " · ")
}

// count says how much was done.
func count(operations []history.Operation, length time.Duration) string {
	counts := map[history.Type]int{}
	for _, o := range operations {
		counts[o.Outcome()]++
	}
	return fmt.Sprintf("%d operations in %s: %d done, %d refused, %d unknown",
		len(operations), length.Round(time.Millisecond), counts[history.OK], counts[history.Fail], counts[history.Info])
}
