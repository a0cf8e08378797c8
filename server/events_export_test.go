package server

// EventReaders is how many callers follow events at this node.
func (n *Node) EventReaders() int { return int(n.readers.Load()) }

// MaxEvents is how many events a node keeps.
const MaxEvents = maxEvents
