package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Why a listener refuses a connection, or a dialler what answered. Each comes wrapped in a [*RefusedError] when the
// other side said it.
var (
	ErrMalformed          = errors.New("malformed handshake")
	ErrWrongVersion       = errors.New("other version of the peer protocol")
	ErrWrongKind          = errors.New("unknown kind of peer connection")
	ErrWrongCluster       = errors.New("other cluster")
	ErrNoCluster          = errors.New("cluster not known yet")
	ErrWrongIncarnation   = errors.New("other incarnation")
	ErrSelf               = errors.New("node dialled itself, or another node runs under its identity")
	ErrTooManyConnections = errors.New("too many peer connections")
	ErrClosing            = errors.New("peer port is closing")
)

// ErrNotPawl is returned by a dial when what answered is no peer port of Pawl.
var ErrNotPawl = errors.New("no peer port answered")

// refusal is the code of a refusal on the wire; its numbers never change.
type refusal byte

const (
	accepted           refusal = 0
	refusedMalformed   refusal = 1
	refusedVersion     refusal = 2
	refusedKind        refusal = 3
	refusedCluster     refusal = 4
	refusedNoCluster   refusal = 5
	refusedIncarnation refusal = 6
	refusedSelf        refusal = 7
	refusedTooMany     refusal = 8
	refusedClosing     refusal = 9
)

func (r refusal) err() error {
	switch r {
	case refusedMalformed:
		return ErrMalformed
	case refusedVersion:
		return ErrWrongVersion
	case refusedKind:
		return ErrWrongKind
	case refusedCluster:
		return ErrWrongCluster
	case refusedNoCluster:
		return ErrNoCluster
	case refusedIncarnation:
		return ErrWrongIncarnation
	case refusedSelf:
		return ErrSelf
	case refusedTooMany:
		return ErrTooManyConnections
	case refusedClosing:
		return ErrClosing
	}
	return fmt.Errorf("refused with code %d", r)
}

// RefusedError is a refusal that the other side spoke. errors.Is finds the sentinel of its reason.
type RefusedError struct {
	Cause   error    // one of the sentinels above
	Reason  string   // the listener's words, at most 128 bytes; made printable
	Peer    Identity // who refused; zero when it did not say
	Cluster string   // the refuser's cluster id, "" when it has none or did not say
}

func (e *RefusedError) Error() string {
	if e.Peer.Name == "" {
		return "peer refused the connection: " + e.Cause.Error()
	}
	return fmt.Sprintf("peer %s refused the connection: %v: %s", e.Peer, e.Cause, e.Reason)
}

// Unwrap gives the sentinel.
func (e *RefusedError) Unwrap() error { return e.Cause }

// refusalLogInterval bounds what a misconfigured or hostile dialler can write into our log: one line per reason (F07).
const refusalLogInterval = 5 * time.Second

// refusalLog decides which refusals are worth a line.
type refusalLog struct {
	mu      sync.Mutex
	reasons map[refusal]*refusalReason // at most one entry per code
}

type refusalReason struct {
	last       time.Time
	suppressed int
}

// allow says whether a line may be written now, and how many of the same reason went unwritten before it.
func (l *refusalLog) allow(code refusal) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reasons == nil {
		l.reasons = make(map[refusal]*refusalReason)
	}
	reason := l.reasons[code]
	now := time.Now()
	if reason == nil {
		l.reasons[code] = &refusalReason{last: now}
		return 0, true
	}
	if now.Sub(reason.last) < refusalLogInterval {
		reason.suppressed++
		return 0, false
	}
	suppressed, reason.suppressed, reason.last = reason.suppressed, 0, now
	return suppressed, true
}
