package fsm

// Notice is one thing that happened, for people and programs that follow along (design, Events). Unlike an Event, which
// answers a caller, it concerns one lock or one session.
type Notice struct {
	Kind    NoticeKind
	Name    string // of the lock; "" for what concerns a session
	Session ID
	Owner   string
	Task    string
	Mode    Mode
	Token   uint64
	Held    uint64 // ms, of a hold that ended
	Reason  string
	By      string
}

// NoticeKind says what a notice tells.
type NoticeKind uint8

// The notices.
const (
	NoticeGranted       NoticeKind = 1
	NoticeReleased      NoticeKind = 2
	NoticeExpired       NoticeKind = 3 // the hold ended with its session's deadline or its own maximum
	NoticeRevoked       NoticeKind = 4 // by an operator
	NoticeQueued        NoticeKind = 5
	NoticeCancelled     NoticeKind = 6 // a wait ended without a grant
	NoticeDelayed       NoticeKind = 7 // a lock is in its lock-delay
	NoticeConverted     NoticeKind = 8
	NoticeValue         NoticeKind = 9
	NoticeSessionOpened NoticeKind = 10
	NoticeSessionEnded  NoticeKind = 11
	NoticeRaised        NoticeKind = 12
)

// note tells something of every lock of a request.
func (s *State) note(r *request, kind NoticeKind, reason, by string) {
	for i := range r.locks {
		if r.locks[i].lock != 0 {
			s.notePart(r, i, kind, reason, by)
		}
	}
}

func (s *State) notePart(r *request, i int, kind NoticeKind, reason, by string) {
	v, p := s.peekSession(r.session), r.locks[i]
	n := Notice{
		Kind: kind, Name: p.Name, Session: v.id, Owner: v.owner, Task: r.task, Mode: p.Mode, Token: p.token, Reason: reason, By: by,
	}
	if r.granted && kind != NoticeGranted {
		n.Held = s.clock - r.since
	}
	s.notices = append(s.notices, n)
}

// noteSession tells something of a named session; those of single acquires come and go with their holds.
func (s *State) noteSession(v *session, kind NoticeKind, reason string) {
	if v.nature == natureNamed {
		s.notices = append(s.notices, Notice{Kind: kind, Session: v.id, Owner: v.owner, Reason: reason})
	}
}
