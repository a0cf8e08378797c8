package workload

import (
	"context"
	"time"
)

// sessions has clients renew on time, late or no more, and never release what they hold: nobody may be freed
// early, and the dead must be freed in time. Some go away while they wait, and some send a release with a strange token.
type sessions struct{ ordinary }

func (sessions) Name() string    { return "sessions" }
func (sessions) Locks() []string { return []string{"sessions/a", "sessions/b"} }

func (w sessions) Client(ctx context.Context, e *Env) {
	c := e.connect()
	defer e.disconnect(c)
	for e.rest(ctx) {
		s := e.open(ctx, c.Calls(), e.between(600*time.Millisecond, 4*time.Second))
		if s == nil {
			continue
		}
		if e.one(6) {
			s.vanish(ctx, pickOne(e, w.Locks()))
			continue
		}
		renewing := true
		var held bool
		if op := s.acquire(ctx, pickOne(e, w.Locks()), min(s.ttl*9/10, 3*time.Second)); op != nil {
			held = true
			if e.one(3) {
				s.stray(ctx, *op, pickOne(e, w.Locks()))
			}
			for range e.Rand.IntN(6) {
				pause := e.between(s.ttl/10, s.ttl/2)
				if e.one(8) {
					pause = e.between(s.ttl*9/10, s.ttl*11/10) // just on time, or just not
				}
				if s.lostBy(ctx, *op, e.Now()+pause) {
					held = false
					break
				}
				if renewing = s.renew(ctx); !renewing || ctx.Err() != nil {
					break
				}
			}
			switch e.Rand.IntN(3) {
			case 0:
				if held && !s.lostBy(ctx, *op, e.Now()) {
					s.release(ctx, *op)
				}
				held = false
			case 1: // falls silent, or has just learnt that its session is gone
			default:
				if held && !s.lostBy(ctx, *op, e.Now()) {
					s.end(ctx)
				}
				held = false
			}
			if held {
				for !s.lostBy(ctx, *op, s.deadline()) {
				}
			}
		}
		if s.unsure {
			s.end(ctx)
			continue
		}
		if !held && renewing && e.one(3) {
			s.renew(ctx) // of a session that may be gone: it must stay so
		}
	}
}

func (sessions) Final(context.Context, *Env) {}
