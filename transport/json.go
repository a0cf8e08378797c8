package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ReadBody reads a request's body of at most MaxBody bytes. The error is an
// *Error: ErrTooLarge, or ErrInvalid when the body could not be read. It blocks
// as long as body does.
func ReadBody(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, MaxBody+1))
	if err != nil {
		// The cause may name addresses of the connection: it is not for the client.
		return nil, invalid("", "the body could not be read to its end")
	}
	if len(data) > MaxBody {
		return nil, NewError(ErrTooLarge, "the body has more than %d bytes", MaxBody)
	}
	return data, nil
}

// Decode reads one JSON object strictly into the struct that target points to,
// which is one of the request messages. Refused are, unlike with encoding/json:
// unknown, repeated and wrongly cased fields, null, any number that is not a
// plain integer within the field's bounds, empty texts and lists, invalid UTF-8
// and lone surrogates, a byte order mark, and anything after the object.
// The error is an *Error that names the field by its path, as locks[1].name;
// target is then partly filled and of no use.
//
// Depth and work are bounded by the message itself: an unknown field is refused
// before its value is looked at.
func Decode(data []byte, target any) error {
	if len(data) > MaxBody {
		return NewError(ErrTooLarge, "the body has more than %d bytes", MaxBody)
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return invalid("", "the body begins with a byte order mark")
	}
	d := decoder{data: data}
	d.space()
	if d.pos == len(data) {
		return invalid("", "the body is empty; a JSON object is needed")
	}
	if data[d.pos] != '{' {
		return invalid("", "the body must be a JSON object")
	}
	if err := d.object("", reflect.ValueOf(target).Elem()); err != nil {
		return err
	}
	d.space()
	if d.pos != len(data) {
		return invalid("", "something follows the JSON object at byte %d", d.pos)
	}
	return nil
}

// decoder walks over data; pos is the next byte to look at.
type decoder struct {
	data []byte
	pos  int
}

func (d *decoder) space() {
	for d.pos < len(d.data) && strings.IndexByte(" \t\r\n", d.data[d.pos]) >= 0 {
		d.pos++
	}
}

// peek gives the next byte that is no space, 0 at the end.
func (d *decoder) peek() byte {
	d.space()
	if d.pos == len(d.data) {
		return 0
	}
	return d.data[d.pos]
}

// take steps over c if it comes next.
func (d *decoder) take(c byte) bool {
	if d.peek() != c {
		return false
	}
	d.pos++
	return true
}

func (d *decoder) syntax(path, expected string) *Error {
	if path == "" {
		return invalid("", "the body is not valid JSON: %s expected at byte %d", expected, d.pos)
	}
	return invalid(path, "is not valid JSON: %s expected at byte %d", expected, d.pos)
}

// object reads an object into the struct value. path is empty at the top, or
// ends where the object stands.
func (d *decoder) object(path string, value reflect.Value) error {
	if !d.take('{') {
		return invalid(path, "must be an object")
	}
	if path != "" {
		path += "."
	}
	var seen uint64 // one bit a field; no message has 64
	for first := true; !d.take('}'); first = false {
		if !first && !d.take(',') {
			return d.syntax(strings.TrimSuffix(path, "."), `"," or "}"`)
		}
		if d.peek() != '"' {
			return d.syntax(strings.TrimSuffix(path, "."), "a field's name")
		}
		key, problem := d.text()
		if problem != nil {
			return d.syntax(strings.TrimSuffix(path, "."), problem.Error())
		}
		here := path + key
		field := fieldNamed(value.Type(), key)
		if field < 0 {
			return invalid(path+shorten(key), "is not a field of this request")
		}
		if seen&(1<<field) != 0 {
			return invalid(here, "is given twice")
		}
		seen |= 1 << field
		if !d.take(':') {
			return d.syntax(here, `":"`)
		}
		if err := d.value(here, key, value.Field(field)); err != nil {
			return err
		}
	}
	return nil
}

// value reads what stands at path into the field called name.
func (d *decoder) value(path, name string, value reflect.Value) error {
	if d.peek() == 'n' {
		return invalid(path, "must not be null")
	}
	if token, ok := value.Addr().Interface().(*Token); ok {
		return d.token(path, token)
	}
	switch value.Kind() {
	case reflect.String:
		if d.peek() != '"' {
			return invalid(path, "must be a string")
		}
		text, problem := d.text()
		if problem != nil {
			return invalid(path, "is not a valid string: %s expected", problem)
		}
		if err := checkText(path, name, text); err != nil {
			return err
		}
		value.SetString(text)
	case reflect.Bool:
		switch word := d.word(); word {
		case "true", "false":
			value.SetBool(word == "true")
		default:
			return invalid(path, "must be true or false")
		}
	case reflect.Int64, reflect.Uint64:
		number, err := d.integer(path, name)
		if err != nil {
			return err
		}
		if value.CanUint() {
			value.SetUint(uint64(number))
		} else {
			value.SetInt(number)
		}
	case reflect.Slice:
		return d.list(path, value)
	case reflect.Map:
		return d.labels(path, value)
	case reflect.Pointer: // for what may be empty and must be there
		value.Set(reflect.New(value.Type().Elem()))
		return d.value(path, name, value.Elem())
	default:
		panic(fmt.Sprintf("transport: field %s has a kind that no request may have", path))
	}
	return nil
}

// list reads an array of objects.
func (d *decoder) list(path string, value reflect.Value) error {
	if !d.take('[') {
		return invalid(path, "must be an array")
	}
	if d.peek() == ']' {
		return invalid(path, "must not be empty")
	}
	for {
		index := value.Len()
		if index == MaxLocks {
			return invalid(path, "must have at most %d elements", MaxLocks)
		}
		value.Grow(1)
		value.SetLen(index + 1)
		if err := d.object(path+"["+strconv.Itoa(index)+"]", value.Index(index)); err != nil {
			return err
		}
		if d.take(']') {
			return nil
		}
		if !d.take(',') {
			return d.syntax(path, `"," or "]"`)
		}
	}
}

// labels reads an object of strings into a map.
func (d *decoder) labels(path string, value reflect.Value) error {
	if !d.take('{') {
		return invalid(path, "must be an object")
	}
	labels := map[string]string{}
	for first := true; !d.take('}'); first = false {
		if !first && !d.take(',') {
			return d.syntax(path, `"," or "}"`)
		}
		if d.peek() != '"' {
			return d.syntax(path, "a key")
		}
		key, problem := d.text()
		if problem != nil {
			return d.syntax(path, problem.Error())
		}
		here := path + "." + shorten(key)
		switch _, twice := labels[key]; {
		case twice:
			return invalid(here, "is given twice")
		case len(labels) == MaxLabels:
			return invalid(path, "must have at most %d keys", MaxLabels)
		case !d.take(':'):
			return d.syntax(here, `":"`)
		case d.peek() != '"':
			return invalid(here, "must be a string")
		}
		text, problem := d.text()
		if problem != nil {
			return invalid(here, "is not a valid string: %s expected", problem)
		}
		if err := checkLabel(path, key, text); err != nil {
			return err
		}
		labels[key] = text
	}
	value.Set(reflect.ValueOf(labels))
	return nil
}

// word reads everything up to the next byte that ends a literal.
func (d *decoder) word() string {
	d.space()
	start := d.pos
	for d.pos < len(d.data) && strings.IndexByte(" \t\r\n,:{}[]\"", d.data[d.pos]) < 0 {
		d.pos++
	}
	return string(d.data[start:d.pos])
}

// integer reads a plain integer within the bounds of the field called name.
// 1.0 and 1e3 are refused although they are whole: what is written is what is
// meant, and no reader rounds (D03, D07).
func (d *decoder) integer(path, name string) (int64, error) {
	literal := d.word()
	digits := strings.TrimPrefix(literal, "-")
	if !decimal(digits) || literal == "-0" {
		return 0, invalid(path, "must be a plain integer")
	}
	// What is beyond 64 bits comes as the farthest number within, which is beyond
	// every field's bounds too; the message gives them.
	number, parseErr := strconv.ParseInt(literal, 10, 64)
	if err := checkNumber(path, name, number); err != nil {
		return 0, err
	}
	if parseErr != nil || number < 0 && numberBounds[name].low >= 0 {
		return 0, invalid(path, "is out of range")
	}
	return number, nil
}

// decimal says whether text is digits without leading zero.
func decimal(text string) bool {
	return text != "" && (text == "0" || text[0] != '0') &&
		strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// token reads a token, a number or a decimal string.
func (d *decoder) token(path string, token *Token) error {
	var literal string
	if d.peek() == '"' {
		text, problem := d.text()
		if problem != nil {
			return invalid(path, "is not a valid string: %s expected", problem)
		}
		literal = text
	} else {
		literal = d.word()
	}
	value, err := ParseToken(literal)
	if err != nil {
		return invalid(path, "is not valid: %s", err)
	}
	*token = value
	if err := checkNumber(path, "token", int64(value)); err != nil {
		return err
	}
	return nil
}

// What a string may lack; each says what was expected instead.
var (
	errUnterminated = errors.New("a closing quote")
	errCharacter    = errors.New("an escaped control character")
	errEscape       = errors.New("a known escape")
	errSurrogate    = errors.New("a pair of surrogates")
	errUTF8         = errors.New("UTF-8")
)

// text reads a string, whose opening quote comes next.
func (d *decoder) text() (string, error) {
	start := d.pos
	escaped := false
	for d.pos++; ; d.pos++ {
		if d.pos >= len(d.data) {
			return "", errUnterminated
		}
		c := d.data[d.pos]
		if c == '"' {
			break
		}
		if c < 0x20 {
			return "", errCharacter
		}
		if c == '\\' {
			escaped = true
			if err := d.escape(); err != nil {
				return "", err
			}
		}
	}
	d.pos++
	literal := d.data[start:d.pos]
	if !utf8.Valid(literal) {
		return "", errUTF8
	}
	if !escaped {
		return string(literal[1 : len(literal)-1]), nil
	}
	var text string
	if err := json.Unmarshal(literal, &text); err != nil {
		return "", errEscape
	}
	return text, nil
}

// escape checks the escape at pos and leaves pos on its last byte. It exists
// because encoding/json turns a lone surrogate silently into U+FFFD, so that two
// different names would become one.
func (d *decoder) escape() error {
	unit, ok := d.unit(d.pos)
	if !ok {
		d.pos++ // one of the short escapes; encoding/json knows which
		return nil
	}
	d.pos += 5
	switch {
	case unit >= 0xdc00 && unit < 0xe000:
		return errSurrogate
	case unit >= 0xd800 && unit < 0xdc00:
		low, ok := d.unit(d.pos + 1)
		if !ok || low < 0xdc00 || low >= 0xe000 {
			return errSurrogate
		}
		d.pos += 6
	}
	return nil
}

// unit reads the \uXXXX at position at.
func (d *decoder) unit(at int) (uint16, bool) {
	if at+6 > len(d.data) || d.data[at] != '\\' || d.data[at+1] != 'u' {
		return 0, false
	}
	value, err := strconv.ParseUint(string(d.data[at+2:at+6]), 16, 16)
	return uint16(value), err == nil
}

// fieldNamed gives the index of the field whose name on the wire is exactly key
// (encoding/json would take TTL_MS for ttl_ms), or -1.
func fieldNamed(message reflect.Type, key string) int {
	for i := range message.NumField() {
		name, _, _ := strings.Cut(message.Field(i).Tag.Get("json"), ",")
		if name == key && key != "" {
			return i
		}
	}
	return -1
}

// shorten bounds what an error repeats of an unknown field's name.
func shorten(name string) string {
	if len(name) <= maxFieldInText {
		return name
	}
	return strings.ToValidUTF8(name[:maxFieldInText], "") + "…"
}
