package server

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// appliedMetrics count what entries did, from what the state machine tells of them: it knows nothing of this (R1). It is fed
// under the machine's lock, so it only adds numbers.
type appliedMetrics struct {
	// What a start applies again, or for the first time but long after it was written, would show as a burst of things that
	// happen now: entries up to this index are not counted. Until it is known, none are.
	before atomic.Uint64
	term   uint64 // of the last entry that was counted

	entries, stale, commands, terms, restored prometheus.Counter
	granted, ended, sessions, renewals        map[string]prometheus.Counter
	notices                                   map[fsm.NoticeKind]prometheus.Counter
	waited, held                              prometheus.Histogram
}

// Values of the labels.
const (
	renewed = "renewed"
	gone    = "gone"
	opened  = "opened"
)

func newAppliedMetrics(m *metrics) *appliedMetrics {
	a := &appliedMetrics{}
	a.before.Store(math.MaxUint64)
	seconds := []float64{.01, .1, 1, 5, 15, 60, 300, 3600}
	a.entries = m.counter("pawl_entries_applied_total", "Log entries applied.")
	a.stale = m.counter("pawl_entries_stale_total", "Log entries that changed nothing because their stamp no longer counted; they are proposed anew.")
	a.commands = m.counter("pawl_commands_applied_total", "Commands in the entries applied; all renewals of an entry are one.")
	a.terms = m.counter("pawl_leader_changes_total", "Terms that a leader has begun.")
	a.restored = m.counter("pawl_restores_total", "Times that a snapshot replaced the state, at the start included.")
	a.granted = labelled(m.counters("pawl_grants_total", "Locks granted.", "mode"), transport.ModeExclusive, transport.ModeShared)
	a.ended = labelled(m.counters("pawl_ends_total", "Holds that ended, by how: given back, with their session, at their maximum, or by an operator.", "how"),
		transport.EndedReleased, transport.EndedExpired, transport.EndedMaxHold, transport.EndedRevoked)
	a.sessions = labelled(m.counters("pawl_sessions_total", "Sessions that clients opened, and how they ended.", "what"), opened, "closed", "expired")
	a.renewals = labelled(m.counters("pawl_renewals_total", "Renewals, and those that came when the session had gone.", "result"), renewed, gone)
	a.notices = map[fsm.NoticeKind]prometheus.Counter{
		fsm.NoticeQueued:    m.counter("pawl_queued_total", "Requests that had to wait, once for each lock."),
		fsm.NoticeCancelled: m.counter("pawl_waits_ended_total", "Waits that ended without a grant, once for each lock."),
		fsm.NoticeDelayed:   m.counter("pawl_delays_total", "Lock-delays that began."),
		fsm.NoticeConverted: m.counter("pawl_conversions_total", "Holds that changed their mode."),
		fsm.NoticeRaised:    m.counter("pawl_raises_total", "Times that an operator raised the tokens, which ended all holds."),
	}
	a.waited = m.histogram("pawl_wait_seconds", "From a request to its grant, of those that did not have it at once, on the lease clock.", seconds)
	a.held = m.histogram("pawl_hold_seconds", "How long holds lasted, on the lease clock.", seconds)
	return a
}

// startedAt tells with which log the node was started.
func (a *appliedMetrics) startedAt(last uint64) { a.before.Store(last) }

// count takes what an entry did, in the order of the log.
func (a *appliedMetrics) count(r *fsm.Result) {
	if r.Term == 0 { // entries have one
		a.restored.Inc()
		return
	}
	if r.Index <= a.before.Load() {
		return
	}
	a.entries.Inc()
	if !r.Applied {
		a.stale.Inc()
	}
	if r.Term > a.term {
		a.term = r.Term
		a.terms.Inc()
	}
	a.commands.Add(float64(len(r.Outcomes)))
	for i := range r.Outcomes {
		for j := range r.Outcomes[i].Renewals {
			if r.Outcomes[i].Renewals[j].Code == fsm.OK {
				a.renewals[renewed].Inc()
			} else {
				a.renewals[gone].Inc()
			}
		}
	}
	for i := range r.Events {
		// What was granted in the entry that asked for it did not wait.
		if e := &r.Events[i]; e.Kind == fsm.EventGranted && e.Request.Index < r.Index {
			a.waited.Observe(float64(e.Waited) / 1000)
		}
	}
	for i := range r.Notices {
		a.notice(&r.Notices[i])
	}
}

func (a *appliedMetrics) notice(n *fsm.Notice) {
	switch n.Kind {
	case fsm.NoticeGranted:
		a.granted[modeWord(n.Mode)].Inc()
	case fsm.NoticeReleased, fsm.NoticeExpired, fsm.NoticeRevoked:
		a.ended[endedWord(*n)].Inc()
		a.held.Observe(float64(n.Held) / 1000)
	case fsm.NoticeSessionOpened:
		a.sessions[opened].Inc()
	case fsm.NoticeSessionEnded:
		if counter := a.sessions[n.Reason]; counter != nil {
			counter.Inc()
		}
	default:
		if counter := a.notices[n.Kind]; counter != nil {
			counter.Inc()
		}
	}
}
