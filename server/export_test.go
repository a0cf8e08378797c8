package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// EventReaders is how many callers follow events at this node.
func (n *Node) EventReaders() int { return int(n.readers.Load()) }

// MaxEvents is how many events a node keeps.
const MaxEvents = maxEvents

// Calls are the routes of the API, as "METHOD path".
func Calls() []string {
	var calls []string
	for path, methods := range routes {
		for method := range methods {
			calls = append(calls, method+" "+path)
		}
	}
	return calls
}

// DescribedCalls are those that openapi_words.go has words for.
func DescribedCalls() []string { return slices.Collect(maps.Keys(operations)) }

// OpenAPI is what /openapi.json answers.
func OpenAPI(version string) (json.RawMessage, error) { return openAPI(version) }

// MetricsTable lists the metrics that are Pawl's own, for the documentation.
func (n *Node) MetricsTable() (string, error) {
	families, err := n.metrics.registry.Gather()
	var b strings.Builder
	b.WriteString("| metric | kind | labels | what |\n|---|---|---|---|\n")
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "pawl_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			values := map[string]bool{}
			for _, m := range f.GetMetric() {
				for _, other := range m.GetLabel() {
					if other.GetName() == l.GetName() {
						values["`"+other.GetValue()+"`"] = true
					}
				}
			}
			text := "`" + l.GetName() + "`"
			if len(values) > 1 && len(values) <= 8 {
				text += " (" + strings.Join(slices.Sorted(maps.Keys(values)), ", ") + ")"
			}
			labels = append(labels, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	return b.String(), err
}
