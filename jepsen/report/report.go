// Package report makes a folder of a run: what happened, what the checkers say, and a page to look at.
//
//	index.html     the page; it needs no other file
//	verdicts.json  what the checkers say, with the command that repeats the run
//	history.jsonl  the history, an operation on each line
//	history.edn    the same in Jepsen's form
//	logs/          what each node has logged
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// Run is what a report is made of.
type Run struct {
	Title    string // "mutex under kill-one"
	Facts    []Fact
	Command  string // that repeats it
	Clients  int    // process p belongs to client p % Clients; 0: each to a client of its own
	Ops      []history.Op
	Verdicts []check.Verdict
	Logs     map[string]string
	// Expected, when it is not "", says why the run was expected to be invalid, and is so all the same.
	Expected string
	MustFail string // the verdict that stands for that, by its checker; it is Valid
	Headline string // instead of the outcome's own, when it is not ""
}

// Fact is something to know about a run.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Outcome is valid only when every verdict is, and there is one.
func (r Run) Outcome() check.Outcome {
	outcome := check.Valid
	for _, v := range r.Verdicts {
		if v.Outcome == check.Invalid {
			return check.Invalid
		}
		if v.Outcome != check.Valid {
			outcome = check.Unknown
		}
	}
	if len(r.Verdicts) == 0 {
		return check.Unknown
	}
	return outcome
}

// Write makes the folder, with its parents, and replaces what is there of an earlier report. The page's size is bounded
// whatever the length of the history: it says what it leaves out.
func Write(dir string, r Run) error {
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"history.jsonl": func(w io.Writer) error { return history.WriteLines(w, r.Ops) },
		"history.edn":   func(w io.Writer) error { return history.WriteEDN(w, r.Ops) },
		"verdicts.json": r.writeVerdicts,
		"index.html":    r.writePage,
	} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	for name, text := range r.Logs {
		if err := os.WriteFile(filepath.Join(dir, logFile(name)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// logFile is where a log is, inside the folder whatever its name.
func logFile(name string) string {
	safe := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, name)
	return filepath.Join("logs", safe+".log")
}

func (r Run) writeVerdicts(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(struct {
		Title    string          `json:"title"`
		Outcome  check.Outcome   `json:"outcome"`
		Expected string          `json:"expected,omitempty"`
		Command  string          `json:"command"`
		Facts    []Fact          `json:"facts"`
		Verdicts []check.Verdict `json:"verdicts"`
	}{r.Title, r.Outcome(), r.Expected, r.Command, r.Facts, r.Verdicts})
}

// client is the lane that a process is drawn in.
func (r Run) client(process int) int {
	if r.Clients > 0 && process >= 0 {
		return process % r.Clients
	}
	return process
}

// length is when the history ends.
func (r Run) length() time.Duration {
	if len(r.Ops) == 0 {
		return time.Second
	}
	return max(r.Ops[len(r.Ops)-1].Time, time.Millisecond)
}

// fault is a time in which there was one.
type fault struct {
	from, to time.Duration
	note     string
}

// faults pairs the beginnings with the ends, by Sequence. What nothing ends goes on to the end of the history.
func (r Run) faults() []fault {
	var faults []fault
	active := map[uint64]int{}
	for _, op := range r.Ops {
		switch {
		case op.F == history.Heal:
			for _, i := range active {
				faults[i].to = op.Time
			}
			clear(active)
		case op.F != history.Fault:
		case op.Value == history.Begin:
			active[op.Sequence] = len(faults)
			faults = append(faults, fault{op.Time, r.length(), op.Note})
		default:
			if i, found := active[op.Sequence]; found {
				faults[i].to = op.Time
				delete(active, op.Sequence)
			}
		}
	}
	return faults
}
