package check

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// The histories of these tests are written by hand, an operation or event on each line, in milliseconds:
//
//	 0..10  a  acquire x -> 5 lease=100   a acquires x with token 5: invoked at 0, OK at 10
//	12..    b  acquire x                  never completed
//	14..15  c  acquire x -> fail
//	20      a  lost x lease=19            an event that stands alone
//	30      !  fault value=1 note=kill    by the nemesis
//
// Processes are letters. What stands behind the arrow is only in the completion: OK, fail or info, or a number, the token
// of an OK. Other fields are called as in JSON.
func parse(t *testing.T, text string) []history.Op {
	t.Helper()
	var ops []history.Op
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			t.Fatalf("%q is no operation", line)
		}
		begin, end, pair := strings.Cut(fields[0], "..")
		op := history.Op{Time: milliseconds(t, begin), Process: int(fields[1][0] - 'a'), Type: history.Invoke, F: fields[2]}
		if fields[1] == "!" {
			op.Process = history.Nemesis
		}
		if !pair {
			op.Type = history.Info
		}
		completion := slices.Index(fields, "->")
		if completion < 0 {
			completion = len(fields)
		}
		for _, field := range fields[3:completion] {
			set(t, &op, field)
		}
		ops = append(ops, op)
		if end == "" {
			continue
		}
		op.Time, op.Type = milliseconds(t, end), history.OK
		for _, field := range fields[min(completion+1, len(fields)):] {
			switch token, err := strconv.ParseUint(field, 10, 64); {
			case err == nil:
				op.Token = token
			case !strings.Contains(field, "="):
				op.Type = history.Type(field)
			default:
				set(t, &op, field)
			}
		}
		ops = append(ops, op)
	}
	slices.SortStableFunc(ops, func(a, b history.Op) int { return cmp.Compare(a.Time, b.Time) })
	for i := range ops {
		ops[i].Index = i
	}
	return ops
}

func milliseconds(t *testing.T, text string) time.Duration {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n * float64(time.Millisecond))
}

func set(t *testing.T, op *history.Op, field string) {
	t.Helper()
	name, value, named := strings.Cut(field, "=")
	if !named {
		op.Lock = field
		return
	}
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag != name {
			continue
		}
		var err error
		switch to := v.Field(i).Addr().Interface().(type) {
		case *string:
			*to = value
		case *int64:
			*to, err = strconv.ParseInt(value, 10, 64)
		case *uint64:
			*to, err = strconv.ParseUint(value, 10, 64)
		case *time.Duration:
			*to = milliseconds(t, value)
		case *[]int64:
			for _, part := range strings.Split(value, ",") {
				n, _ := strconv.ParseInt(part, 10, 64)
				*to = append(*to, n)
			}
		case *[]history.Granted:
			*to = nil
			for _, part := range strings.Split(value, ",") {
				lock, token, _ := strings.Cut(part, ":")
				n, _ := strconv.ParseUint(token, 10, 64)
				*to = append(*to, history.Granted{Name: lock, Token: n})
			}
		default:
			t.Fatalf("no notation for %s", field)
		}
		if err != nil {
			t.Fatalf("%s: %v", field, err)
		}
		return
	}
	t.Fatalf("there is no field %q", name)
}

// judged is one row of a checker's table.
type judged struct {
	name    string
	checker Checker
	want    Outcome
	why     string // part of Verdict.Why
	shown   string // the operations that must be shown and no others, as "a acquire, b acquire"; "" when any will do
	history string
}

func judge(t *testing.T, table []judged) {
	t.Helper()
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			ops := parse(t, row.history)
			before := slices.Clone(ops)
			v := row.checker.Check(ops)
			if !reflect.DeepEqual(ops, before) {
				t.Error("the history was changed")
			}
			if v.Checker != row.checker.Name() || v.Outcome != row.want || !strings.Contains(v.Why, row.why) {
				t.Fatalf("%s: %s, not %s: %q lacks %q; figures %v", v.Checker, v.Outcome, row.want, v.Why, row.why, v.Figures)
			}
			if v.Outcome != Valid && v.Why == "" {
				t.Error("it does not say why")
			}
			if v.Outcome == Invalid && len(v.Shown) == 0 {
				t.Error("it shows nothing")
			}
			if !slices.IsSorted(v.Shown) {
				t.Errorf("shown in disorder: %v", v.Shown)
			}
			var shown []string
			for _, i := range v.Shown {
				if text := string(rune('a'+ops[i].Process)) + " " + ops[i].F; !slices.Contains(shown, text) {
					shown = append(shown, text)
				}
			}
			if got := strings.Join(shown, ", "); row.shown != "" && got != row.shown {
				t.Errorf("it shows %q, not %q", got, row.shown)
			}
		})
	}
}
