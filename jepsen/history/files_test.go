package history

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

var forms = []struct {
	name  string
	write func(io.Writer, []Op) error
	read  func(io.Reader) ([]Op, error)
}{
	{"JSON lines", WriteLines, ReadLines},
	{"EDN", WriteEDN, ReadEDN},
}

// full has something in every field, also in those that are added to Op later.
func full(t *testing.T) Op {
	var op Op
	v := reflect.ValueOf(&op).Elem()
	for i := range v.NumField() {
		switch field := v.Field(i).Addr().Interface().(type) {
		case *int:
			*field = 0
		case *int64:
			*field = int64(-i - 7)
		case *uint64:
			*field = 1<<63 + uint64(i)
		case *time.Duration:
			*field = time.Duration(i) * time.Second
		case *string:
			*field = "a \"b\"\\\n\t\r{é} " + v.Type().Field(i).Name
		case *Type:
			*field = OK
		case *[]int64:
			*field = []int64{1, -2, 0}
		case *[]Granted:
			*field = []Granted{{Name: "a", Token: 5}, {Name: "b c"}}
		default:
			t.Fatalf("no value for %s: teach both forms the new type", v.Type().Field(i).Name)
		}
	}
	return op
}

func TestEveryFieldIsWrittenAndRead(t *testing.T) {
	ops := []Op{
		full(t),
		{Index: 1, Process: Nemesis, Type: Info, F: Fault, Value: Begin, Note: "kill-one"},
		{Index: 2, Type: Invoke, F: Read},
		{Index: 3, Type: OK, F: "Not A Keyword", Error: "é"},
	}
	for _, form := range forms {
		var file bytes.Buffer
		if err := form.write(&file, ops); err != nil {
			t.Fatal(err)
		}
		got, err := form.read(&file)
		if err != nil {
			t.Fatalf("%s: %v", form.name, err)
		}
		if !reflect.DeepEqual(got, ops) {
			t.Errorf("%s: read\n%+v\ninstead of\n%+v", form.name, got, ops)
		}
	}
}

func TestJepsenReadsIt(t *testing.T) {
	var file strings.Builder
	err := WriteEDN(&file, []Op{
		{Index: 0, Time: 5, Process: 3, Type: Invoke, F: Acquire, Lock: "x"},
		{Index: 1, Time: 7, Process: 3, Type: OK, F: Acquire, Lock: "x", Token: 9},
		{Index: 2, Time: 8, Process: Nemesis, Type: Info, F: Fault, Note: "kill-one"},
	})
	want := `{:index 0, :time 5, :process 3, :type :invoke, :f :acquire, :lock "x", :value nil}
{:index 1, :time 7, :process 3, :type :ok, :f :acquire, :lock "x", :token 9, :value nil}
{:index 2, :time 8, :process :nemesis, :type :info, :f :fault, :value 0, :note "kill-one"}
`
	if err != nil || file.String() != want {
		t.Errorf("%v\n%s", err, file.String())
	}
}

func TestStrangeFilesAreRefused(t *testing.T) {
	json := `{"index":0,"time":1,"process":0,"type":"ok","f":"read"}`
	edn := `{:index 0, :time 1, :process 0, :type :ok, :f :read, :value 0}`
	if _, err := ReadLines(strings.NewReader(json)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEDN(strings.NewReader(edn)); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"unknown field":  `{"index":0,"time":1,"process":0,"type":"ok","f":"read","x":1}`,
		"repeated field": `{"index":0,"time":1,"process":0,"type":"ok","f":"read","f":"read"}`,
		"other case":     `{"Index":0,"time":1,"process":0,"type":"ok","f":"read"}`,
		"missing field":  `{"index":0,"time":1,"process":0,"type":"ok"}`,
		"two in a line":  json + json,
		"wrong index":    strings.Replace(json, ":0", ":1", 1),
		"empty line":     "\n" + json,
		"cut off":        json[:30],
		"too long":       `{"index":0,"note":"` + strings.Repeat("x", maxLine) + `"}`,
	} {
		if ops, err := ReadLines(strings.NewReader(file)); err == nil {
			t.Errorf("%s was read: %+v", name, ops)
		}
	}
	for name, file := range map[string]string{
		"unknown field":  strings.Replace(edn, ":f :read", ":f :read, :x 1", 1),
		"repeated field": strings.Replace(edn, ":f :read", ":f :read, :f :read", 1),
		"nil as value":   strings.Replace(edn, ":value 0", ":value nil", 1),
		"no comma":       strings.Replace(edn, ",", "", 1),
		"two in a line":  edn + edn,
		"wrong index":    strings.Replace(edn, ":index 0", ":index 1", 1),
		"no keyword":     strings.Replace(edn, ":read", `"read"`, 1),
		"unknown escape": strings.Replace(edn, ":value 0", `:value 0, :note "\q"`, 1),
		"cut off":        edn[:30],
		"no UTF-8":       strings.Replace(edn, ":value 0", ":value 0, :note \"\xff\"", 1),
	} {
		if ops, err := ReadEDN(strings.NewReader(file)); err == nil {
			t.Errorf("%s was read as EDN: %+v", name, ops)
		}
	}
}

// Whatever is read is what would be written, in both forms, and each form can say what the other says.
func FuzzFiles(f *testing.F) {
	f.Add(`{"index":0,"time":1,"process":-1,"type":"info","f":"fault","value":1,"note":"kill"}`)
	f.Add(`{"index":0,"time":1,"process":2,"type":"ok","f":"acquire","locks":[{"name":"a","token":5}],"values":[1,2]}`)
	f.Add(`{:index 0, :time 1, :process 0, :type :ok, :f :read, :lock "a\"", :value 0}`)
	f.Add(`{:index 0, :time 1, :process :nemesis, :type :ok, :f "", :locks [{:name "a", :token 1} {:name ""}], :value nil}`)
	f.Fuzz(func(t *testing.T, file string) {
		ops, err := ReadLines(strings.NewReader(file))
		if err != nil {
			ops, err = ReadEDN(strings.NewReader(file))
		}
		if err != nil {
			return
		}
		for _, form := range forms {
			var again bytes.Buffer
			if err := form.write(&again, ops); err != nil {
				t.Fatal(err)
			}
			got, err := form.read(bytes.NewReader(again.Bytes()))
			if err != nil || !reflect.DeepEqual(got, ops) {
				t.Fatalf("%s: %v\n%s\n%+v\n%+v", form.name, err, again.Bytes(), got, ops)
			}
		}
	})
}
