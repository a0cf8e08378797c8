package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawl-lock/pawl/transport"
)

// MaxSequence is the largest sequence of an exclusive stamp. Like tokens, sequences
// stay below 2^53, so that storage which counts in floating point (JSON, Lua) keeps them exact.
const MaxSequence = 1<<53 - 2

// SharedSequence stands for a sequence where a mark is stored as two numbers, after
// a shared stamp: above all sequences, so that no exclusive stamp of the same
// token is above it. See Stamp.Mark.
const SharedSequence = 1<<53 - 1

// ErrInvalid is matched by the error of a stamp that cannot be one: no token, an
// exclusive one without a sequence, a shared one with a sequence, numbers that are too large.
var ErrInvalid = errors.New("fence: not a stamp")

// Stamp is what a holder sends along with a write. Its zero value stands for a mark
// where nothing was seen yet, and is refused as a stamp.
type Stamp struct {
	Token    uint64 // the fencing token, 1 to transport.MaxToken
	Sequence uint64 // numbers the writes of one exclusive hold, 1 to MaxSequence; 0 when shared
	Shared   bool
}

// Allowed is the rule: it says whether a resource whose mark is newest may take a
// write with this stamp. It returns a *StaleError when not, or an error that
// matches ErrInvalid.
func (s Stamp) Allowed(newest Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Shared && s.Token >= newest.Token || !s.Shared && s.Above(newest) {
		return nil
	}
	return &StaleError{Offered: s, Newest: newest}
}

// Above says whether a mark moves on from seen to this stamp. After an allowed write the
// mark is the higher of the two; a shared stamp may be allowed without being above.
func (s Stamp) Above(seen Stamp) bool {
	token, sequence := s.Mark()
	seenToken, seenSequence := seen.Mark()
	return token > seenToken || token == seenToken && sequence > seenSequence
}

// Mark gives the stamp as the two numbers that storage compares: an exclusive stamp is allowed
// when its pair is lexicographically larger than the stored one, a shared one
// when its token is not smaller than the stored one. The sequence of a shared stamp is SharedSequence.
func (s Stamp) Mark() (token, sequence int64) {
	if s.Shared {
		return int64(s.Token), SharedSequence
	}
	return int64(s.Token), int64(s.Sequence)
}

// FromMark is the inverse of Mark.
func FromMark(token, sequence int64) Stamp {
	if sequence == SharedSequence {
		return Stamp{Token: uint64(token), Shared: true}
	}
	return Stamp{Token: uint64(token), Sequence: uint64(sequence)}
}

// Validate says whether the stamp can be one; its error matches ErrInvalid.
func (s Stamp) Validate() error {
	switch {
	case s.Token == 0 || s.Token > uint64(transport.MaxToken):
		return fmt.Errorf("%w: the token %d is not from 1 to %d", ErrInvalid, s.Token, transport.MaxToken)
	case s.Shared && s.Sequence != 0:
		return fmt.Errorf("%w: a shared stamp has no sequence", ErrInvalid)
	case !s.Shared && (s.Sequence == 0 || s.Sequence > MaxSequence):
		return fmt.Errorf("%w: the sequence %d is not from 1 to %d", ErrInvalid, s.Sequence, uint64(MaxSequence))
	}
	return nil
}

// String gives the stamp's only notation, for headers: "41.7" is the seventh write
// under token 41, "41.s" one of a shared holder.
func (s Stamp) String() string {
	token := strconv.FormatUint(s.Token, 10)
	if s.Shared {
		return token + ".s"
	}
	return token + "." + strconv.FormatUint(s.Sequence, 10)
}

// Parse reads what String writes of a valid stamp, and nothing else. Its errors match
// ErrInvalid. The text may come from anybody: what is too long is not looked at.
func Parse(text string) (Stamp, error) {
	const longest = len("9007199254740991.9007199254740990")
	token, sequence, found := strings.Cut(text, ".")
	if len(text) > longest || !found {
		return Stamp{}, fmt.Errorf("%w: %.40q is not like 41.7 or 41.s", ErrInvalid, text)
	}
	// Tokens have one notation, and sequences have the same: no sign, space or leading zero.
	number, err := transport.ParseToken(token)
	stamp := Stamp{Token: uint64(number), Shared: sequence == "s"}
	if err == nil && !stamp.Shared {
		number, err = transport.ParseToken(sequence)
		stamp.Sequence = uint64(number)
	}
	if err != nil {
		return Stamp{}, fmt.Errorf("%w: %.40q is not like 41.7 or 41.s", ErrInvalid, text)
	}
	if err := stamp.Validate(); err != nil {
		return Stamp{}, err
	}
	return stamp, nil
}

type stampKey struct{}

// WithStamp gives a context that carries the stamp to whoever writes, for one write
// when the stamp is exclusive.
func WithStamp(ctx context.Context, stamp Stamp) context.Context {
	return context.WithValue(ctx, stampKey{}, stamp)
}

// StampFrom gives the stamp that the context carries, if any.
func StampFrom(ctx context.Context) (Stamp, bool) {
	stamp, found := ctx.Value(stampKey{}).(Stamp)
	return stamp, found
}
