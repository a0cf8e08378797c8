package server

import (
	"context"
	"sync"
	"time"
)

// successorLimit bounds how long the other voters are asked whether they are there, while this node still leads.
const successorLimit = 400 * time.Millisecond

// successor is the id of the voter that leadership is best handed to: of the others that answer now, the one that has
// applied most. Raft by itself takes one that is as far in the log, also when it is down: in an idle cluster such a
// hand-over fails, and everybody waits for an election (F03). When none answers it is "", and Raft may try its luck.
func (n *Node) successor(ctx context.Context) (id string) {
	limited, cancel := context.WithTimeout(ctx, successorLimit)
	defer cancel()
	var (
		asking   sync.WaitGroup
		mu       sync.Mutex // over what follows
		furthest uint64
	)
	for _, s := range n.replica.Servers() {
		if !s.Voter || s.ID == n.port.Self().String() {
			continue
		}
		asking.Go(func() {
			answer, err := n.askIdentity(limited, s.Address)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && (id == "" || answer.Applied > furthest) {
				id, furthest = s.ID, answer.Applied
			}
		})
	}
	asking.Wait()
	return id
}
