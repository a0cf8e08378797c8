package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/pawl-lock/pawl/transport"
)

// readOpenAPI is GET /openapi.json.
func (n *Node) readOpenAPI(*call) (reply, error) { return reply{http.StatusOK, n.openAPI}, nil }

// openAPI describes the API in the words of OpenAPI 3.1. It is made of what the handlers themselves go by: the table of
// routes, the messages of package transport, their bounds and the table of errors.
func openAPI(version string) (json.RawMessage, error) {
	s := newSchemas()
	paths := object{}
	for path, methods := range routes {
		item := object{}
		for method, r := range methods {
			item[strings.ToLower(method)] = s.operation(method, path, r)
		}
		paths[path] = item
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Pawl", "version": version, "summary": "A lock server whose tokens only go up",
			"description": aboutAPI(), "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []object{{"url": "/", "description": "Any node answers."}},
		"paths":      paths,
		"components": object{"schemas": s.components, "headers": answerHeaders},
	})
}

// aboutAPI says what JSON Schema cannot, and lists the errors.
func aboutAPI() string {
	var b strings.Builder
	b.WriteString("Bodies are one JSON object of at most 65536 bytes, without repeated fields; integers are plain digits (1, never 1.0 or 1e0). " +
		"Their Content-Type is application/json, or absent, or the form type that curl sends unless told otherwise. Durations are in " +
		"milliseconds. A path that is not here is `not_found`, another method of one that is `method_not_allowed`, with Allow. Errors:\n\n")
	for _, code := range transport.Codes() {
		row, _ := code.Describe()
		fmt.Fprintf(&b, "- `%s` (%d): %s; applied: %s\n", string(code), row.Status, row.Title, row.Applied)
	}
	return b.String()
}

// operation describes one method of a path.
func (s *schemas) operation(method, path string, r route) object {
	o := operations[method+" "+path]
	out := object{
		"operationId": strings.ToLower(method) + strings.NewReplacer("/", "-", ".", "-").Replace(path),
		"summary":     o.summary, "responses": s.responses(r, o),
	}
	if o.detail != "" {
		out["description"] = o.detail
	}
	if r.request != nil {
		out["requestBody"] = object{
			"required": !o.bodiless,
			"content":  object{transport.TypeJSON: object{"schema": s.of(r.request, true)}},
		}
	}
	var parameters []object
	for _, name := range o.headers {
		parameters = append(parameters, parameter("header", name, headerWords[name]))
	}
	for _, name := range r.parameters {
		words, special := queryWords[path+"?"+name]
		if !special {
			words = queryWords[name]
		}
		parameters = append(parameters, parameter("query", name, words))
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	return out
}

func parameter(in, name string, words object) object {
	schema := maps.Clone(words)
	out := object{"in": in, "name": name, "schema": schema}
	if text, ok := schema["description"]; ok {
		out["description"] = text
		delete(schema, "description")
	}
	if in == "query" && schema["minLength"] != nil { // the one that must be there says so by its bounds
		out["required"] = true
	}
	return out
}

// responses describes the good answers and, status by status, the errors.
func (s *schemas) responses(r route, o operation) object {
	contents := map[int]object{} // by status, then by media type
	texts := map[int][]string{}
	put := func(status int, media, text string, schema object) {
		if contents[status] == nil {
			contents[status] = object{}
		}
		contents[status][media] = schema
		texts[status] = append(texts[status], text)
	}
	for _, a := range o.answers {
		if a.message == nil {
			put(a.status, a.content, a.when, object{"schema": object{"type": "string"}})
			continue
		}
		schema := object{"type": "object"}
		if message := reflect.TypeOf(a.message); message != reflect.TypeFor[document]() {
			schema = s.of(message, false)
		}
		switch {
		case a.event:
			put(a.status, a.content, a.when, object{"schema": object{"type": "string"}, "x-itemSchema": schema, "x-events": eventWords()})
		default:
			put(a.status, transport.TypeJSON, a.when, object{"schema": schema})
		}
	}
	byStatus := map[int][]transport.Code{}
	for _, code := range append(commonErrors(r), o.errors...) {
		row, _ := code.Describe()
		byStatus[row.Status] = append(byStatus[row.Status], code)
	}
	for status, codes := range byStatus {
		slices.Sort(codes)
		var titles []string
		for _, code := range codes {
			row, _ := code.Describe()
			titles = append(titles, fmt.Sprintf("%s (`%s`).", row.Title, string(code)))
		}
		these := object{"properties": object{"code": object{"enum": codes}, "status": object{"const": status}}}
		schema := object{"allOf": []object{s.of(reflect.TypeFor[transport.Error](), false), these}}
		put(status, transport.TypeProblem, strings.Join(titles, " "), object{"schema": schema})
	}
	out := object{}
	for status, content := range contents {
		headers := object{}
		for name := range answerHeaders {
			if name == "Retry-After" && contents[status][transport.TypeProblem] == nil {
				continue
			}
			headers[name] = object{"$ref": "#/components/headers/" + name}
		}
		out[fmt.Sprint(status)] = object{"description": strings.Join(texts[status], " "), "headers": headers, "content": content}
	}
	return out
}

// eventWords are what the event field of a stream can say.
func eventWords() []transport.EventKind {
	return append(slices.Sorted(maps.Values(eventKinds)), transport.EventReset)
}

// answerHeaders are those of every answer, as far as they apply.
var answerHeaders = object{
	transport.HeaderCluster: object{"description": "The cluster's id.", "schema": object{"type": "string"}},
	transport.HeaderNode:    object{"description": "The node that answered.", "required": true, "schema": object{"type": "string"}},
	transport.HeaderIndex:   object{"description": "The log index that the answer reflects.", "required": true, "schema": object{"type": "integer", "minimum": 0}},
	transport.HeaderLeader:  object{"description": "The leader's API URL, when it is known.", "schema": object{"type": "string"}},
	"Retry-After":           object{"description": "Seconds after which it is worth trying again.", "schema": object{"type": "integer", "minimum": 1}},
}
