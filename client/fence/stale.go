package fence

import (
	"errors"
	"fmt"
)

// ErrStale is matched by every *StaleError.
var ErrStale = errors.New("fence: the stamp is too old")

// StaleError refuses a write: the resource has seen a newer stamp, or this one. It
// matches ErrStale.
type StaleError struct {
	Offered Stamp // the write's
	Newest  Stamp // the mark: the newest stamp that the resource has seen
}

// Error implements error.
func (e *StaleError) Error() string {
	if e.Repeated() {
		return fmt.Sprintf("fence: the write with stamp %v was done already", e.Offered)
	}
	return fmt.Sprintf("%v: %v was offered, %v has been seen", ErrStale, e.Offered, e.Newest)
}

// Unwrap makes errors.Is(e, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }

// Repeated says that the newest write that the resource has taken is this very one:
// a holder that has lost an answer learns so that it was done.
func (e *StaleError) Repeated() bool { return !e.Offered.Shared && e.Offered == e.Newest }

// SameHold says that no other holder came between: the write was repeated, or
// overtaken by a later one of the same hold. If it is not known to be done, it may
// be tried again with the stamper's next stamp.
func (e *StaleError) SameHold() bool { return e.Offered.Token == e.Newest.Token }
