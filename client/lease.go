package client

import "time"

// Now reads the clock that leases are counted on, unless WithClock says another. On
// Linux it is CLOCK_BOOTTIME, which is the same in all processes of the machine.
func Now() time.Duration { return bootTime() }

// Deadline says when the lock ends if no later renewal succeeds, on the clock of
// Now: the end of the lease or of the maximum hold, whichever is earlier. The server
// grants it to nobody else before. Of a lock that is not held it says nothing.
func (l *Lock) Deadline() time.Duration {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	if l.until != 0 {
		return min(l.until, l.session.deadline)
	}
	return l.session.deadline
}

// Session gives the id of the session that holds the lock. Whoever knows it can end
// it: it is a secret like a credential.
func (l *Lock) Session() string { return l.session.id }
