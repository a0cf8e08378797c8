package fence

import (
	"sync/atomic"

	"github.com/pawl-lock/pawl/transport"
)

// Stamper numbers the writes of one hold. There must be no more than one for a
// hold: two would give the same stamps. It is safe for concurrent use, but writers of
// one hold that write to the same resource at the same time overtake each other, and the one that
// was overtaken is refused (StaleError.SameHold): take the stamp where the writes
// are in order already, as inside the transaction.
type Stamper struct {
	lock Lock
	last atomic.Uint64
}

// Lock is what a stamper asks for its hold: a *client.Lock.
type Lock interface {
	Name() string
	GrantOf(name string) transport.GrantedLock
}

// NewStamper numbers the writes of a hold, be it of one name or of several, exclusive
// or shared (or a permit). It asks for token and mode with every stamp, so it goes
// on after the lock was converted.
func NewStamper(lock Lock) *Stamper { return &Stamper{lock: lock} }

// Next gives the stamp of the next write to what the lock (the first one of several)
// protects. It never blocks, and does not look at whether the lock is held: the
// resource does. The stamp is invalid, and refused by every kit, when the hold has no token.
func (s *Stamper) Next() Stamp { return s.NextOf(s.lock.Name()) }

// NextOf does so for one of several names. For any other name the stamp is invalid.
func (s *Stamper) NextOf(name string) Stamp {
	grant := s.lock.GrantOf(name)
	stamp := Stamp{Token: uint64(grant.Token), Shared: grant.Mode == transport.ModeShared}
	if !stamp.Shared {
		stamp.Sequence = s.last.Add(1)
	}
	return stamp
}
