package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
)

const clients = 6

// example makes the history of a run that long, with faults, and with an overlap in its middle if broken.
func example(length time.Duration, broken bool) Run {
	random := rand.New(rand.NewPCG(1, 2))
	var now time.Duration
	h := history.New(func() time.Duration { return now }, 10_000_000)
	process, token := [clients]int{}, uint64(10)
	for i := range process {
		process[i] = i
	}
	pass := func(most time.Duration) { now += time.Duration(random.Int64N(int64(most))) }
	fault, next := false, 20*time.Second
	for sequence := uint64(1); now < length; {
		if now > next {
			op := history.Op{Process: history.Nemesis, Type: history.Info, F: history.Fault, Note: "kill-one n2", Sequence: sequence, Value: history.Begin}
			if fault {
				op.Value = history.End
				sequence++
			}
			h.Add(op)
			fault = !fault
			next = now + 12*time.Second
		}
		i := random.IntN(clients)
		lock := fmt.Sprint("orders/", random.IntN(3))
		op := history.Op{Process: process[i], Type: history.Invoke, F: history.Acquire, Lock: lock}
		h.Add(op)
		pass(20 * time.Millisecond)
		if fault {
			pass(2 * time.Second)
		}
		switch random.IntN(12) {
		case 0:
			op.Type, op.Error = history.Fail, "pawl: held"
			h.Add(op)
			continue
		case 1:
			if fault {
				op.Type, op.Error = history.Info, "pawl: the outcome is unknown"
				h.Add(op)
				process[i] += clients
				continue
			}
		}
		token++
		op.Type, op.Token = history.OK, token
		h.Add(op)
		pass(300 * time.Millisecond)
		if broken && now > length/2 {
			broken = false
			other := history.Op{Process: process[(i+1)%clients], Type: history.Invoke, F: history.Acquire, Lock: lock}
			h.Add(other)
			pass(20 * time.Millisecond)
			token++
			other.Type, other.Token = history.OK, token
			h.Add(other)
			pass(100 * time.Millisecond)
			other.F = history.Release
			other.Type = history.Invoke
			h.Add(other)
			pass(20 * time.Millisecond)
			other.Type = history.OK
			h.Add(other)
		}
		op.F, op.Type = history.Release, history.Invoke
		h.Add(op)
		pass(20 * time.Millisecond)
		op.Type = history.OK
		h.Add(op)
	}
	h.Add(history.Op{Process: history.Nemesis, Type: history.Info, F: history.Heal})
	r := Run{
		Title: "mutex under kill-one", Command: "pawl-jepsen run --cluster virtual --workload mutex --fault kill-one --seed 7",
		Facts:   []Fact{{"cluster", "virtual, 3 nodes"}, {"clients", "6"}, {"seed", "7"}, {"commit", "0123456"}},
		Clients: clients, Ops: h.Ops(), Logs: map[string]string{"n1": "all is well\n", "../n2": "likewise\n"},
	}
	for _, c := range []check.Checker{check.Exclusion{}, check.Tokens{}, check.Linearizable{Model: "mutex"}, check.Reads{}} {
		r.Verdicts = append(r.Verdicts, c.Check(r.Ops))
	}
	return r
}

func written(t *testing.T, r Run) (dir, page string) {
	t.Helper()
	dir = os.Getenv("PAWL_REPORT") // to look at it
	if dir == "" {
		dir = t.TempDir()
	}
	dir = filepath.Join(dir, t.Name())
	if err := Write(dir, r); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, string(data)
}

func TestReport(t *testing.T) {
	r := example(2*time.Minute, true)
	dir, page := written(t, r)
	for _, want := range []string{
		`<div class="top invalid"><b>INVALID</b>`, "mutex under kill-one", r.Command, "both believed to hold it",
		"What exclusion shows", "kill-one n2", "orders/1", "client 5", "data:image/png;base64,", `href="logs/n1.log"`, "nothing to judge: no looks",
		`<span class="badge unknown">unknown</span>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Error("the template refused a value")
	}
	for name, read := range map[string]func([]byte) ([]history.Op, error){
		"history.jsonl": func(b []byte) ([]history.Op, error) { return history.ReadLines(bytes.NewReader(b)) },
		"history.edn":   func(b []byte) ([]history.Op, error) { return history.ReadEDN(bytes.NewReader(b)) },
	} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if ops, err := read(data); err != nil || !reflect.DeepEqual(ops, r.Ops) {
			t.Errorf("%s: %v, %d operations", name, err, len(ops))
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "verdicts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var verdicts struct {
		Outcome  check.Outcome
		Command  string
		Verdicts []check.Verdict
	}
	if err := json.Unmarshal(data, &verdicts); err != nil || verdicts.Outcome != check.Invalid || verdicts.Command != r.Command ||
		len(verdicts.Verdicts) != 4 || !reflect.DeepEqual(verdicts.Verdicts[0], r.Verdicts[0]) {
		t.Errorf("%v\n%s", err, data)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "logs", "___n2.log")); err != nil || string(text) != "likewise\n" {
		t.Errorf("a log with a strange name: %v", err)
	}
}

// The page of a history of hours is no bigger than a browser likes, and says what it leaves out.
func TestLongHistory(t *testing.T) {
	_, page := written(t, example(2*time.Hour, true))
	if len(page) > 2<<20 {
		t.Errorf("the page has %d bytes", len(page))
	}
	for _, want := range []string{"more than can be told apart", "more.</div>", "both believed"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestValid(t *testing.T) {
	r := example(time.Minute, false)
	r.Verdicts = r.Verdicts[:3]
	if _, page := written(t, r); !strings.Contains(page, `<div class="top valid"><b>valid</b>`) || strings.Contains(page, "shows</h2>") {
		t.Error("the page of a valid run is not right")
	}
}

func TestNothingIsNoPass(t *testing.T) {
	for name, r := range map[string]Run{
		"nothing at all":     {},
		"an unknown verdict": {Verdicts: []check.Verdict{{Outcome: check.Valid}, {Outcome: check.Unknown, Why: "no time"}}},
		"what cannot be":     {Ops: []history.Op{{Type: history.OK, F: history.Read}}},
	} {
		if r.Outcome() != check.Unknown {
			t.Errorf("%s is %s", name, r.Outcome())
		}
		if _, page := written(t, r); !strings.Contains(page, "not a pass") {
			t.Errorf("%s: the page does not say that it is no pass", name)
		}
	}
}

// Nothing that a history says becomes part of the page's markup.
func TestEverythingIsEscaped(t *testing.T) {
	evil := `<script>alert("1")</script>`
	r := Run{Title: evil, Command: evil, Expected: evil, Facts: []Fact{{evil, evil}}, Ops: []history.Op{
		{Index: 0, Type: history.Info, Process: history.Nemesis, F: history.Fault, Note: evil, Value: history.Begin},
		{Index: 1, Type: history.Invoke, F: evil, Lock: evil},
		{Index: 2, Time: 1e6, Type: history.OK, F: evil, Lock: evil, Error: evil, Note: evil},
		{Index: 3, Time: 2e6, Type: history.Invoke, F: history.Acquire, Lock: evil},
		{Index: 4, Time: 3e6, Type: history.OK, F: history.Acquire, Lock: evil, Token: 4, Lease: 9e6},
	}, Verdicts: []check.Verdict{{Checker: evil, Outcome: check.Invalid, Why: evil, Shown: []int{1, 2, 3, 4, 99}, Figures: map[string]int64{evil: 1}}}}
	if _, page := written(t, r); strings.Contains(page, "<script") {
		t.Error("a script came through")
	}
}
