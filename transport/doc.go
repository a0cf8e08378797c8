// Package transport defines what is said on the wire: the JSON messages of
// the HTTP API, the bounds of every field, the strict decoder that enforces
// them, and the one table of error codes. The server and the client both use
// it, so that errors.Is means the same on both sides.
//
// Durations are integers in milliseconds and their names end in _ms. A zero
// number or an empty string in a request struct means "not given"; the decoder
// refuses an explicit zero or empty value wherever that is out of range, so
// nothing is silently defaulted.
//
// The package knows nothing of the state machine, of Raft or of sockets. It
// has no mutable state and everything in it is safe for concurrent use.
package transport
