package history

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Jepsen's own form of a history, for its tools: a map in EDN for each Op, each on a line of its own. Type and F are
// keywords and the nemesis is :nemesis, as there; :value is nil where a number has no meaning. What Jepsen does not know
// (:token, :lease …) are further keys of the same map, which its tools leave alone. All durations are in nanoseconds.

// WriteEDN writes ops in Jepsen's form.
func WriteEDN(w io.Writer, ops []Op) error {
	buffered := bufio.NewWriter(w)
	for _, op := range ops {
		buffered.Write(appendEDN(nil, op))
		buffered.WriteByte('\n')
	}
	return buffered.Flush()
}

// ReadEDN reads what WriteEDN has written, and refuses anything else.
func ReadEDN(r io.Reader) ([]Op, error) {
	return readLines(r, func(line []byte) (Op, []byte, error) {
		op, err := parseEDN(string(line))
		return op, appendEDN(nil, op), err
	})
}

// hasValue says whether 0 is a value of this kind of operation, and not its absence.
func hasValue(f string) bool {
	switch f {
	case Read, Write, Add, Transfer, Final, Fault:
		return true
	}
	return false
}

// isKeyword says whether s can be written as a keyword and read as the same.
func isKeyword(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && s != "nemesis"
}

// appendEDN goes over the fields of Op by reflection, so that a new one cannot be forgotten.
func appendEDN(b []byte, op Op) []byte {
	v, t := reflect.ValueOf(op), reflect.TypeFor[Op]()
	b = append(b, '{')
	for i := range t.NumField() {
		name, optional := fieldName(t.Field(i))
		field := v.Field(i)
		if optional && field.IsZero() && name != "value" {
			continue
		}
		if len(b) > 1 {
			b = append(b, ", "...)
		}
		b = append(append(append(b, ':'), name...), ' ')
		switch {
		case name == "process" && field.Int() == Nemesis:
			b = append(b, ":nemesis"...)
		case name == "value" && field.IsZero() && !hasValue(op.F):
			b = append(b, "nil"...)
		case (name == "type" || name == "f") && isKeyword(field.String()):
			b = append(append(b, ':'), field.String()...)
		default:
			b = appendValue(b, field)
		}
	}
	return append(b, '}')
}

func fieldName(f reflect.StructField) (name string, optional bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, options == "omitempty"
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case reflect.Uint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	case reflect.String:
		return appendString(b, v.String())
	case reflect.Slice:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ' ')
			}
			b = appendValue(b, v.Index(i))
		}
		return append(b, ']')
	case reflect.Struct:
		b = append(b, '{')
		for i := range v.NumField() {
			name, optional := fieldName(v.Type().Field(i))
			if optional && v.Field(i).IsZero() {
				continue
			}
			if b[len(b)-1] != '{' {
				b = append(b, ", "...)
			}
			b = appendValue(append(append(append(b, ':'), name...), ' '), v.Field(i))
		}
		return append(b, '}')
	}
	panic("history: no EDN for a " + v.Kind().String())
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '\n': 'n', '\r': 'r', '\t': 't'}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, c := range []byte(strings.ToValidUTF8(s, "\uFFFD")) {
		if e, found := escapes[c]; found {
			b = append(b, '\\', e)
		} else {
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// reader reads the small part of EDN that is written above. What it lets through but would not be written so is found by
// readLines.
type reader struct{ rest string }

var errEDN = errors.New("not an operation in EDN")

func parseEDN(line string) (Op, error) {
	var op Op
	r := &reader{line}
	if !utf8.ValidString(line) {
		return op, errEDN
	}
	if err := r.structure(reflect.ValueOf(&op).Elem()); err != nil {
		return Op{}, fmt.Errorf("%w near %.20q", err, r.rest)
	}
	if r.rest != "" {
		return Op{}, errEDN
	}
	return op, nil
}

func (r *reader) take(prefix string) bool {
	rest, found := strings.CutPrefix(r.rest, prefix)
	r.rest = rest
	return found
}

func (r *reader) word() string {
	end := strings.IndexAny(r.rest, " ,]}")
	if end < 0 {
		end = len(r.rest)
	}
	word := r.rest[:end]
	r.rest = r.rest[end:]
	return word
}

func (r *reader) structure(v reflect.Value) error {
	if !r.take("{") {
		return errEDN
	}
	for first := true; !r.take("}"); first = false {
		if !first && !r.take(", ") || !r.take(":") {
			return errEDN
		}
		field := fieldNamed(v, r.word())
		if !field.IsValid() || !r.take(" ") {
			return errEDN
		}
		if err := r.value(field); err != nil {
			return err
		}
	}
	return nil
}

func fieldNamed(v reflect.Value, wanted string) reflect.Value {
	for i := range v.NumField() {
		if name, _ := fieldName(v.Type().Field(i)); name == wanted {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func (r *reader) value(v reflect.Value) (err error) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		if r.take("nil") {
			return nil
		}
		if v.Kind() == reflect.Int && r.take(":nemesis") {
			v.SetInt(Nemesis)
			return nil
		}
		var n int64
		n, err = strconv.ParseInt(r.word(), 10, 64)
		v.SetInt(n)
	case reflect.Uint64:
		var n uint64
		n, err = strconv.ParseUint(r.word(), 10, 64)
		v.SetUint(n)
	case reflect.String:
		if r.take(":") {
			v.SetString(r.word())
			return nil
		}
		var s string
		s, err = r.text()
		v.SetString(s)
	case reflect.Slice:
		if !r.take("[") {
			return errEDN
		}
		for first := true; !r.take("]"); first = false {
			if !first && !r.take(" ") {
				return errEDN
			}
			element := reflect.New(v.Type().Elem()).Elem()
			if err := r.value(element); err != nil {
				return err
			}
			v.Set(reflect.Append(v, element))
		}
	case reflect.Struct:
		return r.structure(v)
	}
	return err
}

func (r *reader) text() (string, error) {
	if !r.take(`"`) {
		return "", errEDN
	}
	var text bytes.Buffer
	for i := 0; i < len(r.rest); i++ {
		switch c := r.rest[i]; c {
		case '"':
			r.rest = r.rest[i+1:]
			return text.String(), nil
		case '\\':
			i++
			if i == len(r.rest) {
				return "", errEDN
			}
			known := false
			for from, to := range escapes {
				if to == r.rest[i] {
					text.WriteByte(from)
					known = true
				}
			}
			if !known {
				return "", errEDN
			}
		default:
			text.WriteByte(c)
		}
	}
	return "", errEDN
}
