package server

import (
	"encoding/json"
	"maps"
	"slices"
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
