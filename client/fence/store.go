package fence

import "context"

// Store runs a write under a mark: it compares the stamp with the mark of this name, moves the mark
// on and runs write in one step, so that what write does through the context that it is given (a
// transaction, say) is kept together with the mark, or neither is. It returns a *StaleError without
// running write, an error that matches ErrInvalid, the write's own error, or the storage's: then
// nobody may know whether the write was kept.
//
// It is what the kits that have no storage of their own are given: httpfence and messagefence. The
// kits of databases make one.
type Store func(ctx context.Context, name string, stamp Stamp, write func(ctx context.Context) error) error

// Store is the guard's Do for kits that take a Store. It does not wait for an ended context's sake:
// others' writes must return.
func (g *Guard) Store() Store {
	return func(ctx context.Context, name string, stamp Stamp, write func(context.Context) error) error {
		return g.Do(name, stamp, func() error { return write(ctx) })
	}
}
