package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// piece is a part of the description as JSON has it.
type piece = map[string]any

// described is the description, to make calls from.
type described struct{ document piece }

func describe(t *testing.T) described {
	t.Helper()
	text, err := server.OpenAPI("test")
	if err != nil {
		t.Fatal(err)
	}
	d := described{piece{}}
	if err := json.Unmarshal(text, &d.document); err != nil {
		t.Fatal(err)
	}
	return d
}

// follow resolves a reference.
func (d described) follow(schema piece) piece {
	reference, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	var at any = d.document
	for _, step := range strings.Split(strings.TrimPrefix(reference, "#/"), "/") {
		at = at.(piece)[step]
	}
	return at.(piece)
}

// values gives JSON of every border of a schema, on both sides, and of other types. What of it is valid the validator says.
func (d described) values(schema piece) (values []string) {
	schema = d.follow(schema)
	add := func(text ...string) { values = append(values, text...) }
	text := func(s string) { add(quoted(s)) }
	add("null", "true", "-1", "0", "1", `"x"`, "[]", "{}", "1.5")
	for _, branch := range list(schema["oneOf"]) {
		values = append(values, d.values(branch.(piece))...)
	}
	for _, word := range list(schema["enum"]) {
		text(word.(string))
		text(strings.ToUpper(word.(string)))
	}
	for _, border := range []string{"minimum", "maximum"} {
		if number, ok := schema[border].(float64); ok {
			for _, n := range []int64{int64(number) - 1, int64(number), int64(number) + 1} {
				add(strconv.FormatInt(n, 10))
			}
		}
	}
	switch schema["type"] {
	case "boolean":
		add("false", `"true"`)
	case "string":
		most := 200
		if number, ok := schema["maxLength"].(float64); ok {
			most = int(number)
		}
		for _, length := range []int{0, 1, most, most + 1} {
			text(strings.Repeat("y", length))
		}
		for _, odd := range []string{"\x00", "\t", "\x1f", " ", "\x7f", "\u0085", "\u009f", "\u00a0", "é😀", "0", "01", "9007199254740991", "00112233445566778899aabbccddeeff", "00112233445566778899AABBCCDDEEFF"} {
			text(odd)
		}
	case "array":
		item := `{"name":"l%d"}`
		for _, count := range []int{1, 2, transport.MaxLocks, transport.MaxLocks + 1} {
			var items []string
			for i := range count {
				items = append(items, fmt.Sprintf(item, i))
			}
			add("[" + strings.Join(items, ",") + "]")
		}
		element := d.follow(schema["items"].(piece))
		good := piece{"name": json.RawMessage(`"l"`), "mode": json.RawMessage(`"shared"`), "limit": json.RawMessage(`3`)}
		for _, body := range d.bodies(element, good) {
			add("[" + body + "]")
		}
	case "object":
		for _, count := range []int{1, transport.MaxLabels, transport.MaxLabels + 1} {
			labels := map[string]string{}
			for i := range count {
				labels[fmt.Sprint("k", i)] = ""
			}
			b, _ := json.Marshal(labels)
			add(string(b))
		}
		for _, key := range []string{"", "a\tb", strings.Repeat("k", transport.MaxLabel), strings.Repeat("k", transport.MaxLabel+1)} {
			add(fmt.Sprintf(`{%s:"v"}`, quoted(key)))
		}
		for _, value := range []string{`1`, `null`, quoted("a\tb"), quoted(strings.Repeat("v", transport.MaxLabelValue)), quoted(strings.Repeat("v", transport.MaxLabelValue+1))} {
			add(fmt.Sprintf(`{"k":%s}`, value))
		}
	}
	return values
}

func list(of any) []any {
	all, _ := of.([]any)
	return all
}

// bodies gives a good object with one field at a time changed in every way, left out or added.
func (d described) bodies(schema, good piece) (bodies []string) {
	properties := schema["properties"].(piece)
	put := func(change func(piece)) {
		object := maps.Clone(good)
		change(object)
		b, err := json.Marshal(object)
		if err != nil {
			panic(err)
		}
		bodies = append(bodies, string(b))
	}
	put(func(piece) {})
	put(func(o piece) { o["unknown"] = 1 })
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		put(func(o piece) { delete(o, name) })
		for _, value := range d.values(properties[name].(piece)) {
			put(func(o piece) { o[name] = json.RawMessage(value) })
		}
	}
	return bodies
}

// mixtures gives objects with any of the fields, to see how they go together.
func mixtures(random *rand.Rand, fields piece, count int) (bodies []string) {
	for range count {
		object := piece{}
		for name, value := range fields {
			if random.IntN(2) == 0 {
				object[name] = value
			}
		}
		b, _ := json.Marshal(object)
		bodies = append(bodies, string(b))
	}
	return bodies
}

// inWordsOnly is what no schema can say and the description says in words.
func inWordsOnly(body, detail string) bool {
	for _, words := range []string{"must not be above request", "must be another number than request", "(or the Idempotency-Key header)", "must be true or false"} {
		if strings.HasSuffix(detail, words) {
			return true
		}
	}
	return strings.Contains(detail, "a plain decimal integer below 2^53") && strings.Contains(body, `"9`)
}

// Whatever the description says is valid a node takes, and what it says is not valid every node refuses, with the field's
// name: bodies with one thing wrong, or right up to its border, at a time, and every mixture of fields.
func TestOpenAPIAgainstANode(t *testing.T) {
	d := describe(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	paths := d.document["paths"].(piece)
	counts, seen := map[bool]int{}, map[string]bool{}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		node := 0
		compare := func(method, target, body string) {
			t.Helper()
			node = (node + 1) % a.Size()
			wrong := undescribed(exchange{method: method, target: target, body: body})
			answer, err := a.send(context.Background(), node, method, target, body)
			if err != nil {
				t.Fatal(err)
			}
			counts[wrong == nil]++
			detail, _ := answer.Field("detail").(string)
			refused := answer.Status == 400 || answer.Status == 413
			switch field, _ := answer.Field("field").(string); {
			case refused && wrong == nil && !inWordsOnly(body, detail):
				t.Errorf("%s %s %s is described as valid and refused: %s", method, short(target), short(body), detail)
			case refused && field == "" && answer.Status == 400:
				t.Errorf("%s %s %s was refused without a field: %s", method, short(target), short(body), answer.Body)
			}
			kind := fmt.Sprint(method, strings.SplitN(target, "?", 2)[0], answer.Status, answer.Field("code"), wrong == nil)
			if seen[kind] && wrong != nil == refused {
				return // the description takes long to look at
			}
			seen[kind] = true
			if err := undescribed(exchange{method, target, body, nil, answer}); err != nil {
				t.Errorf("%s %s %s was answered %d: %v", method, short(target), short(body), answer.Status, err)
			}
		}
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			for method, operation := range paths[path].(piece) {
				method = strings.ToUpper(method)
				operation := operation.(piece)
				if content, ok := operation["requestBody"].(piece); ok {
					schema := d.follow(content["content"].(piece)[transport.TypeJSON].(piece)["schema"].(piece))
					fields := piece{}
					for _, good := range goodBodies[path] {
						object := piece{}
						for _, f := range good {
							object[f.name], fields[f.name] = json.RawMessage(f.value), json.RawMessage(f.value)
						}
						for _, body := range d.bodies(schema, object) {
							compare(method, path, body)
						}
					}
					for name := range schema["properties"].(piece) {
						if fields[name] == nil {
							t.Errorf("%s %s: the tests have no good value of %s", method, path, name)
						}
					}
					for _, body := range mixtures(random, fields, 10*len(fields)) {
						compare(method, path, body)
					}
				}
				for _, target := range d.targets(path, operation) {
					if !strings.HasPrefix(target, "/v1/events") { // those of streams are tested beside them
						compare(method, target, "")
					}
				}
			}
		}
	})
	t.Logf("%d valid, %d not", counts[true], counts[false])
	if counts[true] < 500 || counts[false] < 500 {
		t.Errorf("%d calls that are described as valid, %d that are not: too few to tell", counts[true], counts[false])
	}
}

// targets gives the path with every parameter at its borders.
func (d described) targets(path string, operation piece) (targets []string) {
	must := url.Values{}
	for _, p := range list(operation["parameters"]) {
		if p.(piece)["required"] == true {
			must.Set(p.(piece)["name"].(string), "n")
		}
	}
	if operation["requestBody"] == nil {
		targets = append(targets, path, path+"?"+must.Encode())
	}
	for _, p := range list(operation["parameters"]) {
		p := p.(piece)
		if p["in"] != "query" {
			continue
		}
		for _, value := range d.values(p["schema"].(piece)) {
			text, err := strconv.Unquote(value)
			if err != nil {
				text = value
			}
			query := maps.Clone(must)
			query.Set(p["name"].(string), text)
			targets = append(targets, path+"?"+query.Encode())
		}
	}
	return targets
}
