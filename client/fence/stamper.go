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
	token  func() transport.Token
	shared bool
	last   atomic.Uint64
}

// NewStamper numbers the writes of an exclusive hold. It asks for the token with
// every stamp, as it changes when the hold is converted: pass a lock's method
// Token, or for one of several names a function that calls TokenOf.
func NewStamper(token func() transport.Token) *Stamper { return &Stamper{token: token} }

// NewSharedStamper stamps the writes of a shared hold (or of a permit).
func NewSharedStamper(token func() transport.Token) *Stamper {
	return &Stamper{token: token, shared: true}
}

// Next gives the stamp of the next write. It never blocks, and does not look at whether the lock
// is held: the resource does. The stamp is invalid, and refused by every kit, when the
// hold has no token.
func (s *Stamper) Next() Stamp {
	stamp := Stamp{Token: uint64(s.token()), Shared: s.shared}
	if !s.shared {
		stamp.Sequence = s.last.Add(1)
	}
	return stamp
}
