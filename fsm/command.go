package fsm

import "fmt"

// Hard caps of the format. The wire has the same or smaller ones; a decoder refuses what is above.
const (
	MaxName     = 512        // bytes of a lock's name
	MaxOwner    = 256        // bytes of an owner
	MaxTask     = 256        // bytes of a task
	MaxTrace    = 256        // bytes of a trace context
	MaxLocks    = 64         // locks in one request
	MaxToken    = 1 << 53    // tokens stay below, so that every JSON reader keeps them exact (R10)
	MaxFloor    = 1 << 52    // a floor named in a raise, so that no mistake can use up the range (R10)
	MaxTTL      = 86_400_000 // ms
	MaxWait     = 300_000    // ms
	MaxLimit    = 1_000_000  // permits of a semaphore
	MaxRenewals = 8192       // renewals in one command
	MaxValue    = 4096       // bytes of a value
	MaxPriority = 1000       // and as much below zero
	MaxLabels   = 16         // of a session
	MaxLabel    = 64         // bytes of a label's key
	MaxReason   = 1024       // bytes of an operator's reason
	MaxActor    = 256        // bytes of an operator's name
)

// ID names a session or a cluster: 128 random or derived bits.
type ID [16]byte

// Mode is how a lock is held.
type Mode uint8

// The modes. Their numbers are in the log and never change.
const (
	Exclusive Mode = 1
	Shared    Mode = 2
)

// Kind says what a command is. The numbers are in the log and never change.
type Kind uint8

const (
	kindOpen    Kind = 1
	kindRenew   Kind = 2
	kindClose   Kind = 3
	kindAcquire Kind = 4
	kindRelease Kind = 5
	kindCancel  Kind = 6
	kindRaise   Kind = 7
	kindLevel   Kind = 8
	kindConvert Kind = 9
	kindValue   Kind = 10
	kindForce   Kind = 11
)

// Command is one thing that an entry asks of the state machine.
type Command interface {
	kind() Kind
	fields(*coder)
}

// Open begins a session. Repeated with the same id it answers as before.
type Open struct {
	Session ID
	Owner   string
	TTL     uint64 // ms
	Labels  []Label
}

// Label is a key and a value for people to find a session by.
type Label struct{ Key, Value string }

// Renew keeps sessions alive, many in one command (R4). Sessions go by their number, which is short.
type Renew struct {
	Sessions []Renewal
}

// Renewal keeps one session alive and says what its client has finished.
type Renewal struct {
	Session uint64
	TTL     uint64 // ms; 0 keeps what it was
	Done    uint64 // every request number below is finished (R8)
}

// Close ends a session with all its holds and waits.
type Close struct {
	Session uint64
}

// Acquire asks for one or several locks, all or none.
//
// In a session it carries Session and Number. Without one it opens a session of its own, named ID, that ends with the
// hold; when that name was derived from an Idempotency-Key, Keyed is set and the name outlives the hold for a while (R8).
type Acquire struct {
	Session uint64 // 0: opens one of its own
	Number  uint64 // ≥ 1 in a session, else 0
	Done    uint64
	ID      ID     // of its own session
	Keyed   bool   //
	Owner   string // of its own session
	TTL     uint64 // ms, of its own session
	Wait    uint64 // ms it may wait; 0 is a try
	Task    string
	Trace   string
	Locks   []Want // in byte order of their names, distinct

	Priority int64  // -MaxPriority to MaxPriority: higher ones stand before lower ones
	MaxHold  uint64 // ms after which the hold ends whatever the session does; 0 is never
	Delay    uint64 // ms that the locks stay free of holders after an unclean end (R9)
	Value    string // kept with the hold, for others to read
}

// Want is one lock of a request.
type Want struct {
	Name  string
	Mode  Mode
	Limit uint32 // 0 is none; with Shared, how many may hold
}

// Release gives a grant back: all its locks, or the named one.
type Release struct {
	Session uint64
	Number  uint64 // 0 for the grant of a session of its own
	Token   uint64 // 0 only with a number
	Name    string // "" is all locks of the grant
}

// Cancel ends a request, whether it waits or is granted; one that has not arrived yet is finished beforehand (R8).
type Cancel struct {
	Session uint64
	Number  uint64 // 0 for a session of its own
	Key     ID     // with Keyed: names the session of its own
	Keyed   bool
	Waiting bool // only a wait: a grant that came first stays, and is the answer
}

// Raise lifts every later token above Above and above every token possible so far, and ends all holds and sessions (R10).
type Raise struct {
	ID     ID // a repeated one does nothing more
	Above  uint64
	Reason string
}

// Convert changes the mode of one lock of a grant (R9). It is a request with a number of its own.
type Convert struct {
	Session uint64
	Number  uint64
	Done    uint64
	Of      uint64 // number of the request that made the hold
	Token   uint64 // the hold's
	Want           // the lock, and the mode and limit that it shall have
	Wait    uint64 // ms
}

// Value changes the value that is kept with a hold.
type Value struct {
	Session uint64
	Number  uint64 // 0 for the grant of a session of its own
	Token   uint64
	Name    string
	Value   string
}

// Force ends the holds of one lock that have this token, against their holders' will (R9).
type Force struct {
	Name   string
	Token  uint64
	Reason string
	By     string
	Delay  uint64 // ms of lock-delay afterwards; what the holder asked for counts when it is more
}

// Level raises the cluster's feature level by one (R13).
type Level struct {
	Level uint64
}

func (*Open) kind() Kind    { return kindOpen }
func (*Renew) kind() Kind   { return kindRenew }
func (*Close) kind() Kind   { return kindClose }
func (*Acquire) kind() Kind { return kindAcquire }
func (*Release) kind() Kind { return kindRelease }
func (*Cancel) kind() Kind  { return kindCancel }
func (*Raise) kind() Kind   { return kindRaise }
func (*Level) kind() Kind   { return kindLevel }
func (*Convert) kind() Kind { return kindConvert }
func (*Value) kind() Kind   { return kindValue }
func (*Force) kind() Kind   { return kindForce }

// newCommand returns an empty command of a kind, nil when this version does not know it.
func newCommand(k Kind) Command {
	switch k {
	case kindOpen:
		return &Open{}
	case kindRenew:
		return &Renew{}
	case kindClose:
		return &Close{}
	case kindAcquire:
		return &Acquire{}
	case kindRelease:
		return &Release{}
	case kindCancel:
		return &Cancel{}
	case kindRaise:
		return &Raise{}
	case kindLevel:
		return &Level{}
	case kindConvert:
		return &Convert{}
	case kindValue:
		return &Value{}
	case kindForce:
		return &Force{}
	}
	return nil
}

func (o *Open) fields(c *coder) {
	c.id(&o.Session)
	c.text(&o.Owner, MaxOwner, "owner")
	c.bounded(&o.TTL, MaxTTL, "ttl")
	c.labels(&o.Labels)
}

func (c *coder) labels(l *[]Label) {
	list(c, l, MaxLabels, "labels", func(c *coder, l *Label) {
		c.text(&l.Key, MaxLabel, "label")
		c.text(&l.Value, MaxOwner, "label")
	})
}

func (r *Renew) fields(c *coder) {
	list(c, &r.Sessions, MaxRenewals, "renewals", func(c *coder, r *Renewal) {
		c.number(&r.Session)
		c.bounded(&r.TTL, MaxTTL, "ttl")
		c.bounded(&r.Done, MaxToken, "done")
	})
}

func (x *Close) fields(c *coder) { c.number(&x.Session) }

func (a *Acquire) fields(c *coder) {
	c.number(&a.Session)
	c.bounded(&a.Number, MaxToken, "request")
	c.bounded(&a.Done, MaxToken, "done")
	c.id(&a.ID)
	c.flag(&a.Keyed)
	c.text(&a.Owner, MaxOwner, "owner")
	c.bounded(&a.TTL, MaxTTL, "ttl")
	c.bounded(&a.Wait, MaxWait, "wait")
	c.text(&a.Task, MaxTask, "task")
	c.text(&a.Trace, MaxTrace, "trace")
	list(c, &a.Locks, MaxLocks, "locks", func(c *coder, w *Want) { w.fields(c) })
	c.priority(&a.Priority)
	c.bounded(&a.MaxHold, MaxTTL, "max hold")
	c.bounded(&a.Delay, MaxTTL, "lock-delay")
	c.text(&a.Value, MaxValue, "value")
	if c.err != nil {
		return
	}
	if len(a.Locks) == 0 {
		c.fail("acquire without a lock")
	}
	if (a.Session == 0) != (a.Number == 0) || (a.Keyed && a.Session != 0) {
		c.fail("acquire of session %d with number %d", a.Session, a.Number)
	}
	for i := 1; i < len(a.Locks); i++ {
		if a.Locks[i-1].Name >= a.Locks[i].Name {
			c.fail("locks of an acquire are not in order")
		}
	}
}

func (w *Want) fields(c *coder) {
	c.text(&w.Name, MaxName, "name")
	c.mode(&w.Mode)
	boundedAs(c, &w.Limit, MaxLimit, "limit")
}

// priority is coded as its distance from the lowest.
func (c *coder) priority(p *int64) {
	if !c.reading && (*p < -MaxPriority || *p > MaxPriority) {
		c.fail("priority %d", *p)
		return
	}
	n := uint64(*p + MaxPriority)
	c.bounded(&n, 2*MaxPriority, "priority")
	if c.reading && c.err == nil {
		*p = int64(n) - MaxPriority
	}
}

func (c *coder) mode(m *Mode) {
	boundedAs(c, m, uint64(Shared), "mode")
	if c.err == nil && *m == 0 {
		c.fail("mode 0")
	}
}

func (r *Release) fields(c *coder) {
	c.number(&r.Session)
	c.bounded(&r.Number, MaxToken, "request")
	c.bounded(&r.Token, MaxToken, "token")
	c.text(&r.Name, MaxName, "name")
}

func (x *Cancel) fields(c *coder) {
	c.number(&x.Session)
	c.bounded(&x.Number, MaxToken, "request")
	c.id(&x.Key)
	c.flag(&x.Keyed)
	c.flag(&x.Waiting)
}

func (x *Convert) fields(c *coder) {
	c.number(&x.Session)
	c.bounded(&x.Number, MaxToken, "request")
	c.bounded(&x.Done, MaxToken, "done")
	c.bounded(&x.Of, MaxToken, "of")
	c.bounded(&x.Token, MaxToken, "token")
	x.Want.fields(c)
	c.bounded(&x.Wait, MaxWait, "wait")
	if c.err == nil && (x.Session == 0 || x.Number == 0 || x.Of == 0) {
		c.fail("convert of request %d with number %d", x.Of, x.Number)
	}
}

func (x *Value) fields(c *coder) {
	c.number(&x.Session)
	c.bounded(&x.Number, MaxToken, "request")
	c.bounded(&x.Token, MaxToken, "token")
	c.text(&x.Name, MaxName, "name")
	c.text(&x.Value, MaxValue, "value")
}

func (f *Force) fields(c *coder) {
	c.text(&f.Name, MaxName, "name")
	c.bounded(&f.Token, MaxToken, "token")
	c.text(&f.Reason, MaxReason, "reason")
	c.text(&f.By, MaxActor, "by")
	c.bounded(&f.Delay, MaxTTL, "lock-delay")
}

func (r *Raise) fields(c *coder) {
	c.id(&r.ID)
	c.bounded(&r.Above, MaxFloor, "floor")
	c.text(&r.Reason, MaxReason, "reason")
}

func (l *Level) fields(c *coder) { c.number(&l.Level) }

// command codes one command: its kind, whether a version that does not know it may skip it, and its length and body.
func (c *coder) command(x *Command) {
	var kind Kind
	var skippable bool
	if !c.reading {
		kind = (*x).kind()
	}
	boundedAs(c, &kind, 255, "command kind")
	c.flag(&skippable)
	if c.err != nil {
		return
	}
	if !c.reading {
		body := coder{}
		(*x).fields(&body)
		if body.err != nil {
			c.err = body.err
			return
		}
		n := uint64(len(body.buf))
		c.number(&n)
		c.buf = append(c.buf, body.buf...)
		return
	}
	n := c.length(0, maxEntry, "command")
	if c.err != nil {
		return
	}
	body := coder{reading: true, buf: c.buf[:n]}
	c.buf = c.buf[n:]
	*x = newCommand(kind)
	if *x == nil {
		if !skippable {
			c.err = fmt.Errorf("command %d: %w", kind, ErrNewer)
		}
		return
	}
	(*x).fields(&body)
	if err := body.finish(); err != nil {
		c.err = fmt.Errorf("command %d: %w", kind, err)
	}
}
