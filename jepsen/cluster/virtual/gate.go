package virtual

import (
	"context"
	"sync"
)

// gate holds a client's own steps while it is paused.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil while open; closed when it opens
}

// pass blocks while the gate is closed, or until ctx ends: a process that is stopped does not notice that either, but a run
// must end.
func (g *gate) pass(ctx context.Context) {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return
		}
		select {
		case <-shut:
		case <-ctx.Done():
			return
		}
	}
}

// close returns false when it was closed already.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return false
	}
	g.shut = make(chan struct{})
	return true
}

// open returns false when it was open already.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		return false
	}
	close(g.shut)
	g.shut = nil
	return true
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut != nil
}
