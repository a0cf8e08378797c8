package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Spacing of attempts while nothing succeeds. Calls and renewals together stay
// below five attempts a second (D11) when the TTL is at least 10 s; with shorter
// ones renewals are tried more often, since they must succeed before the deadline.
const (
	callSpacing       = 250 * time.Millisecond
	minRenewalSpacing = 100 * time.Millisecond
	greatestSpacing   = time.Second // so that a recovery is noticed within 2 s
	longestAdvice     = 5 * time.Second
)

// pace spaces out the attempts of a whole Client while they fail, and stands in
// nobody's way while they succeed.
type pace struct {
	least, most time.Duration

	mu        sync.Mutex
	failing   bool
	spacing   time.Duration
	next      time.Time     // not before which the next attempt goes out
	recovered chan struct{} // closed when an attempt succeeds
}

func newPace(least, most time.Duration) *pace {
	return &pace{least: least, most: most, spacing: least, recovered: make(chan struct{})}
}

// enter waits until an attempt may be made, or ctx ends. While attempts fail one
// caller goes ahead at a time; all follow as soon as one succeeds.
func (p *pace) enter(ctx context.Context) error {
	for {
		p.mu.Lock()
		if !p.failing {
			p.mu.Unlock()
			return nil
		}
		wait, recovered := time.Until(p.next), p.recovered
		if wait <= 0 {
			p.next = time.Now().Add(jitter(p.spacing))
			p.spacing = min(p.spacing*2, p.most)
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-recovered:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// failed notes that an attempt has failed for want of a node that serves.
func (p *pace) failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.failing {
		// The next attempt may go out at once: it goes to another node.
		p.failing, p.spacing, p.next = true, p.least, time.Time{}
	}
}

// succeeded notes that a node serves.
func (p *pace) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing {
		p.failing, p.spacing = false, p.least
		close(p.recovered)
		p.recovered = make(chan struct{})
	}
}

// jitter gives a time of d to d × 1.5, so that clients that failed together do
// not come back together.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
