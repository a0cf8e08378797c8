package fence

import (
	"errors"
	"fmt"
	"sync"
)

// ErrFull: the guard knows as many names as it may, and forgets none of them.
var ErrFull = errors.New("fence: too many names")

// Guard keeps marks in memory, for a resource that lives in this process and dies
// with it. It is safe for concurrent use.
//
// It cannot protect what outlives the process: after a restart it has seen nothing.
type Guard struct {
	limit int
	mu    sync.Mutex // guards the map only, never held while a write runs
	marks map[string]*mark
}

type mark struct {
	mu     sync.Mutex // held while a write runs
	newest Stamp
}

// NewGuard makes a guard that knows no more than this many names. Marks are never
// forgotten: a guard that forgot one would let an old holder in again.
func NewGuard(limit int) *Guard {
	return &Guard{limit: limit, marks: make(map[string]*mark)}
}

// Check refuses the stamp with a *StaleError, or takes it as the newest. Between Check and a write that
// follows, a newer holder may come: Do is for that.
func (g *Guard) Check(name string, stamp Stamp) error {
	return g.Do(name, stamp, func() error { return nil })
}

// Do runs write if the stamp is allowed, and nothing else under this name meanwhile: it blocks
// until others have returned. A write that fails (or panics) must have changed nothing:
// its stamp may be used again then, while older holders are refused from now on. Errors are a *StaleError,
// ErrInvalid, ErrFull or the write's own. A write must not call the guard with its own name.
func (g *Guard) Do(name string, stamp Stamp, write func() error) error {
	if err := stamp.Validate(); err != nil { // before a name is taken up
		return err
	}
	m, err := g.mark(name)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := stamp.Allowed(m.newest); err != nil {
		return err
	}
	if m.newest.Token < stamp.Token {
		m.newest = Stamp{Token: stamp.Token, Shared: stamp.Shared}
	}
	if err := write(); err != nil {
		return err
	}
	if stamp.Above(m.newest) {
		m.newest = stamp
	}
	return nil
}

// Newest gives the mark of a name, zero when nothing was seen. It blocks while a write runs.
func (g *Guard) Newest(name string) Stamp {
	g.mu.Lock()
	m := g.marks[name]
	g.mu.Unlock()
	if m == nil {
		return Stamp{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest
}

func (g *Guard) mark(name string) (*mark, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.marks[name]; m != nil {
		return m, nil
	}
	if len(g.marks) >= g.limit {
		return nil, fmt.Errorf("%w: %d", ErrFull, g.limit)
	}
	m := &mark{}
	g.marks[name] = m
	return m, nil
}
