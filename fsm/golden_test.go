package fsm

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "accept what the scripts in testdata print")

// TestScripts runs the scripts in testdata. A line that begins with "> " is an entry (script_test.go), or one of
//
//	> fill SESSION FROM TO LOCK [same=yes] [wait=MS]   numbered acquires of locks NAME0, NAME1, … with same=yes and for shared NAME itself
//	> drain                                                      ticks until nothing is left over
//	> gaps SESSION COUNT                                         cancels of every second number
//	> quiet …                                                    an entry whose effect is not printed
//
// and the lines up to the next blank one are what it printed: its outcomes, its events after "!", and the state. Every
// state is checked, and restored from its own snapshot before the next entry.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			wanted := strings.Split(string(want), "\n")
			for i, line := range strings.Split(got, "\n") {
				if i >= len(wanted) || line != wanted[i] {
					t.Fatalf("%s:%d: got\n\t%s\nwant\n\t%s\n(-rewrite accepts it)", file, i+1, line, strings.Join(wanted[min(i, len(wanted)):min(i+1, len(wanted))], ""))
				}
			}
			if got != string(want) {
				t.Fatalf("%s has more lines than were printed", file)
			}
		})
	}
}

// scripted is a script that is being run.
type scripted struct {
	t      *testing.T
	state  *State
	stamps stamper
	names  names
	tokens *tokens
	out    bytes.Buffer
}

func runScript(t *testing.T, script string) string {
	r := &scripted{t: t, state: NewState(), names: names{}, tokens: newTokens()}
	printed := false
	for line := range strings.SplitSeq(script, "\n") {
		command, isCommand := strings.CutPrefix(line, "> ")
		if !isCommand {
			// Comments and blank lines stay; what was printed is printed anew.
			if blank := strings.TrimSpace(line) == ""; blank || strings.HasPrefix(line, "#") {
				printed = false
				fmt.Fprintf(&r.out, "%s\n", line)
			} else if !printed {
				t.Fatalf("line belongs to no command: %s", line)
			}
			continue
		}
		printed = true
		fmt.Fprintf(&r.out, "%s\n", line)
		r.command(command)
	}
	return strings.TrimSuffix(r.out.String(), "\n")
}

func (r *scripted) command(line string) {
	switch word, rest, _ := strings.Cut(line, " "); word {
	case "fill":
		r.fill(split(rest))
	case "drain":
		entries := 0
		for ; r.state.backlog(); entries++ {
			if entries > 100 {
				r.t.Fatal("the work never ends")
			}
			r.apply(step{})
		}
		fmt.Fprintf(&r.out, "after %d ticks\n", entries)
		r.state.print(&r.out)
	case "gaps":
		w := split(rest)
		var st step
		for n := range number64(w.plain[1]) {
			st.commands = append(st.commands, &Cancel{Session: r.names.session(w.plain[0]), Number: 2*n + 2})
			if len(st.commands) == MaxCommands {
				r.apply(st)
				st = step{}
			}
		}
		r.apply(st)
		r.state.print(&r.out)
	case "quiet":
		r.apply(parseStep(rest, r.names))
	default:
		result, err := r.apply(parseStep(line, r.names))
		if err != nil {
			fmt.Fprintf(&r.out, "fatal: %v\n", err)
			return
		}
		result.print(&r.out)
		r.state.print(&r.out)
	}
}

func (r *scripted) fill(w words) {
	var st step
	granted, queued := 0, 0
	flush := func() {
		result, err := r.apply(st)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, o := range result.Outcomes {
			switch o.Code {
			case OK:
				granted++
			case Queued:
				queued++
			}
		}
		st = step{}
	}
	session := r.names.session(w.plain[0])
	for n, to := number64(w.plain[1]), number64(w.plain[2]); n <= to; n++ {
		want := parseWant(w.plain[3])
		if !strings.Contains(w.plain[3], ":") && w.named["same"] == "" {
			want.Name += fmt.Sprint(n)
		}
		st.commands = append(st.commands, &Acquire{Session: session, Number: n, Wait: w.number("wait"), Locks: []Want{want}})
		if len(st.commands) == MaxCommands || n == to {
			flush()
		}
	}
	fmt.Fprintf(&r.out, "%d granted, %d queued\n", granted, queued)
}

// apply applies an entry after sending it through its encoding, checks the state, and goes on with a restored copy.
func (r *scripted) apply(st step) (*Result, error) {
	r.t.Helper()
	e := r.stamps.entry(r.state.index+1, st)
	if !slices.Contains(st.commands, nil) { // a command that this version does not know cannot be encoded
		b, err := e.Encode()
		if err != nil {
			r.t.Fatalf("%v: %v", st, err)
		}
		if e, err = DecodeEntry(b); err != nil {
			r.t.Fatalf("%v: %v", st, err)
		}
	}
	result, err := r.state.Apply(r.state.index+1, 1, e)
	if err != nil {
		return nil, err
	}
	if err := check(r.state); err != nil {
		r.t.Fatalf("after %v:\n%v", st, err)
	}
	if err := r.tokens.after(r.state); err != nil {
		r.t.Fatalf("after %v:\n%v", st, err)
	}
	restored, err := roundTrip(r.state)
	if err != nil {
		r.t.Fatalf("after %v: %v", st, err)
	}
	r.names.learn(r.state)
	r.state = restored
	return result, nil
}
