package replica

const (
	// notifyPlaces is how many changes Raft can note before it would wait for our goroutine to be scheduled.
	notifyPlaces = 64
	// leadershipBacklog bounds what a slow listener has still to hear. Older changes then vanish in pairs, so that what it
	// hears still alternates and ends with the truth.
	leadershipBacklog = 64
)

// forwardLeadership hands every change on, in order, and never stops reading: Raft's main loop waits for its reader, so
// a reader that itself waits for Raft, or for anybody, stops the node (C06).
func forwardLeadership(changes <-chan bool, heard chan<- bool, ended <-chan struct{}) {
	defer close(heard)
	var backlog []bool
	for {
		var out chan<- bool
		var next bool
		if len(backlog) > 0 {
			out, next = heard, backlog[0]
		}
		select {
		case change := <-changes:
			backlog = append(backlog, change)
			if len(backlog) > leadershipBacklog {
				backlog = append(backlog[:0:0], backlog[2:]...)
			}
		case out <- next:
			backlog = backlog[1:]
		case <-ended:
			return
		}
	}
}
