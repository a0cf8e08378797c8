package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// The description is OpenAPI 3.1, and says everything: each route, each error code, and words for each field, parameter and
// header.
func TestOpenAPIIsComplete(t *testing.T) {
	text, err := server.OpenAPI("v1")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background(), openapi3.IsOpenAPI31OrLater()); err != nil {
		t.Error(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Info.Version != "v1" {
		t.Errorf("it is %s of %s", doc.OpenAPI, doc.Info.Version)
	}
	var described []string
	codes := map[string]bool{
		// Of requests for what is not described, and of credentials, which are not taken yet.
		"not_found": true, "method_not_allowed": true, "unauthenticated": true,
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			described = append(described, method+" "+path)
			for _, p := range operation.Parameters {
				if p.Value.Description == "" || p.Value.Schema == nil || p.Value.Schema.Value.IsEmpty() {
					t.Errorf("%s %s: nothing is said of the parameter %q", method, path, p.Value.Name)
				}
			}
			for status, response := range operation.Responses.Map() {
				media := response.Value.Content[transport.TypeProblem]
				if media == nil {
					continue
				}
				for _, code := range media.Schema.Value.AllOf[1].Value.Properties["code"].Value.Enum {
					codes[code.(string)] = true
					if row, _ := transport.Code(code.(string)).Describe(); fmt.Sprint(row.Status) != status {
						t.Errorf("%s %s: %s with status %s", method, path, code, status)
					}
				}
			}
		}
	}
	for _, other := range [][]string{server.Calls(), server.DescribedCalls()} {
		for _, call := range described {
			if !slices.Contains(other, call) {
				t.Errorf("%s is described and there is no such route", call)
			}
		}
		for _, call := range other {
			if !slices.Contains(described, call) {
				t.Errorf("%s is not described", call)
			}
		}
	}
	for _, code := range transport.Codes() {
		if !codes[string(code)] || !strings.Contains(doc.Info.Description, "`"+string(code)+"`") {
			t.Errorf("no call is described as answered with %s", string(code))
		}
	}
	for name, schema := range doc.Components.Schemas {
		for field, property := range schema.Value.Properties {
			if property.Value.Description == "" {
				t.Errorf("nothing is said of %s.%s", name, field)
			}
		}
	}
}

// Every node tells the same.
func TestOpenAPIIsServed(t *testing.T) {
	want, err := server.OpenAPI("test")
	if err != nil {
		t.Fatal(err)
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			answer := a.MustGet(node, "/openapi.json")
			if !json.Valid(answer.Body) || strings.TrimSpace(string(answer.Body)) != string(want) || answer.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s answers %s %s", a.Name(node), answer.Header.Get("Content-Type"), short(string(answer.Body)))
			}
		}
	})
}
