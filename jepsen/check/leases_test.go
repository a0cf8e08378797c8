package check

import (
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

func TestLeases(t *testing.T) {
	c := Leases{}
	judge(t, []judged{
		{"gone after its lease", c, Valid, "", "", `
			0..10   a  open -> ok session=s lease=50
			60..61  a  renew session=s -> fail error=session_gone:no_such`},
		{"gone before its lease", c, Unknown, "no leases", "", `
			0..10   a  open -> ok session=s
			40..41  a  renew session=s -> fail error=session_gone`},
		{"freed early", c, Invalid, "9ms before the end", "a open, a renew", `
			0..10   a  open -> ok session=s lease=50
			40..41  a  renew session=s -> fail error=session_gone`},
		{"freed early though renewed", c, Invalid, "before the end", "a renew, a acquire", `
			0..10   a  open -> ok session=s lease=50
			30..31  a  renew session=s -> ok lease=80
			60..61  a  acquire x session=s -> fail error=session_gone`},
		{"a renewal of which nobody knows promises nothing", c, Valid, "", "", `
			0..10   a  open -> ok session=s lease=50
			30..31  a  renew session=s -> info lease=80
			60..61  b  acquire x session=s -> fail error=session_gone`},
		{"closed by itself", c, Valid, "", "", `
			0..10   a  open -> ok session=s lease=50
			20..    b  close session=s
			40..41  a  renew session=s -> fail error=session_gone`},
		{"refused for another reason", c, Valid, "", "", `
			0..10   a  open -> ok session=s lease=50
			40..41  a  renew session=s -> fail error=no_leader`},
		{"a hold expired early", c, Invalid, "8ms before the end", "a acquire, a lost", `
			0..10   a  acquire x session=s -> 5 lease=50
			42      a  lost x lease=42 note=expired`},
		{"a hold lost because nobody answered", c, Valid, "", "", `
			0..10   a  acquire x session=s -> 5 lease=50
			42      a  lost x lease=42 note=unreachable`},
		{"all sessions ended by an operator", c, Valid, "", "", `
			0..10   a  open -> ok session=s lease=50
			20..21  b  force
			40..41  a  renew session=s -> fail error=session_gone`},
		{"forced by an operator", c, Valid, "", "", `
			0..10   a  acquire x session=s -> 5 lease=50
			20..21  b  force x
			42      a  lost x lease=42 note=expired`},
	})
}

func TestWakeups(t *testing.T) {
	w := Wakeups{TTL: 1000 * time.Millisecond, Slack: 100 * time.Millisecond, Settle: 500 * time.Millisecond, Unknown: 2000 * time.Millisecond}
	idle := w
	idle.Idle = 20 * time.Millisecond
	judge(t, []judged{
		{"woken by the release", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			5..60      b  acquire x -> 9
			50..55     a  release x
			5000..5001 b  release x`},
		{"a silent waiter is granted, and its session is not over", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			5..6       b  open -> session=s lease=400
			7..8       b  acquire x session=s -> info note=silent
			9..460     c  acquire x -> 9
			50..55     a  release x
			5000..5001 c  release x`},
		{"a silent waiter is granted when its session is over", w, Invalid, "nobody held it", "", `
			0..10      a  acquire x -> 5
			5..6       b  open -> session=s lease=400
			7..8       b  acquire x session=s -> info note=silent
			9..1100    c  acquire x -> 9
			550..555   a  release x
			5000..5001 c  release x`},
		{"a waiter of whom nobody knows may be granted then", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			5..6       b  open -> session=s lease=400
			7..8       b  acquire x session=s -> info
			9..1100    c  acquire x -> 9
			550..555   a  release x
			5000..5001 c  release x`},
		{"woken, but not at once", idle, Invalid, "nobody held it", "", `
			0..10      a  acquire x -> 5
			5..120     b  acquire x -> 9
			50..55     a  release x
			5000..5001 b  release x`},
		{"woken at once", idle, Valid, "", "", `
			0..10      a  acquire x -> 5
			5..60      b  acquire x -> 9
			50..55     a  release x
			5000..5001 b  release x`},
		{"not woken", w, Invalid, "nobody held it", "a acquire, b acquire, a release", `
			0..10      a  acquire x -> 5
			5..300     b  acquire x -> 9
			50..55     a  release x
			5000..5001 b  release x`},
		{"never woken", w, Invalid, "nobody held it", "", `
			0..10      a  acquire x -> 5
			5..        b  acquire x
			50..55     a  release x
			5000..5001 c  look x -> 0`},
		{"a permit is free", w, Invalid, "at most 1 of 2 permits were taken, and 1 waited", "a acquire, c acquire, a release", `
			0..10      a  acquire x mode=shared limit=2 -> 5
			0..11      b  acquire x mode=shared limit=2 -> 5
			12..300    c  acquire x mode=shared limit=2 -> 5
			50..55     a  release x
			400..401   b  release x
			5000..5001 c  release x`},
		{"all permits are taken", w, Valid, "", "", `
			0..10      a  acquire x mode=shared limit=2 -> 5
			0..11      b  acquire x mode=shared limit=2 -> 5
			12..320    c  acquire x mode=shared limit=2 -> 5
			300..301   a  release x
			400..401   b  release x
			5000..5001 c  release x`},
		{"a permit may be taken by somebody of whom nobody knows", w, Valid, "", "", `
			0..10      a  acquire x mode=shared limit=2 -> info
			0..11      b  acquire x mode=shared limit=2 -> 5
			12..320    c  acquire x mode=shared limit=2 -> 5
			400..401   b  release x
			5000..5001 c  release x`},
		{"a permit that who asks for all waits for", w, Valid, "", "", `
			0..10      a  acquire x mode=shared limit=2 -> 5
			11..400    b  acquire x mode=exclusive -> 9
			12..500    c  acquire x mode=shared limit=2 -> 11
			390..395   a  release x
			420..421   b  release x
			5000..5001 c  release x`},
		{"a reader is alone, and does not become a writer", w, Invalid, "nobody held it", "", `
			0..10      a  acquire x mode=shared -> 5
			0..11      b  acquire x mode=shared -> 5
			12..300    a  convert x mode=exclusive token=5 -> 9
			50..55     b  release x
			5000..5001 a  release x`},
		{"another reader holds it until then", w, Valid, "", "", `
			0..10      a  acquire x mode=shared -> 5
			0..11      b  acquire x mode=shared -> 5
			12..300    a  convert x mode=exclusive token=5 -> 9
			250..255   b  release x
			5000..5001 a  release x`},
		{"a conversion of which nobody knows", w, Valid, "", "", `
			0..10      a  acquire x mode=shared session=s -> 5 lease=500
			12..300    a  convert x mode=exclusive token=5 -> info
			13..700    b  acquire x -> 11
			5000..5001 b  release x`},
		{"not woken in a fault", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			40         !  fault value=1 note=kill-all
			5..800     b  acquire x -> 9
			50..55     a  release x
			400        !  fault note=kill-all
			5000..5001 b  release x`},
		{"not woken when the fault is over", w, Invalid, "nobody held it", "", `
			0..10      a  acquire x -> 5
			40         !  fault value=1 note=kill-all
			5..1800    b  acquire x -> 9
			50..55     a  release x
			400        !  fault note=kill-all
			5000..5001 b  release x`},
		{"a dead holder, freed in time", w, Valid, "", "", `
			0..10      a  acquire x session=s -> 5 lease=500
			5..1590    b  acquire x session=t -> 9 lease=9000
			5000..5001 b  release x`},
		{"a dead holder, freed late", w, Invalid, "nobody held it", "a acquire, b acquire", `
			0..10      a  acquire x session=s -> 5 lease=500
			5..1790    b  acquire x session=t -> 9 lease=9000
			5000..5001 b  release x`},
		{"a release of which nobody knows is not waited for", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			50..55     a  release x -> info
			5..1140    b  acquire x -> 9
			5000..5001 b  release x`},
		{"a release of which nobody knows, in a session that goes on", w, Valid, "", "", `
			0..10      a  acquire x session=s -> 5 lease=500
			50..55     a  release x -> info
			400..2000  c  queue y session=s request=7 -> fail error=cancelled
			5..3000    b  acquire x session=t -> 9 lease=9000
			5000..5001 b  release x`},
		{"a holder of whom nobody knows", w, Valid, "", "", `
			0..10      a  acquire x -> info
			5..2900    b  acquire x -> 9
			5000..5001 b  release x`},
		{"a holder who was told too late", w, Valid, "", "", `
			0..10      a  acquire x -> fail note=lost_before_it_was_known
			5..1100    b  acquire x -> 9
			5000..5001 b  release x`},
		{"one that stood in the queue and of whom nobody knows", w, Valid, "", "", `
			0..10      a  queue x session=s request=1 -> info
			5..2900    b  acquire x -> 9
			5000..5001 b  release x`},
		{"a holder of whom nobody knows cannot hold for ever", w, Invalid, "nobody held it", "", `
			0..10      a  acquire x -> info
			5..3900    b  acquire x -> 9
			5000..5001 b  release x`},
		{"an idle lock that is asked for together with a held one", w, Valid, "", "", `
			0..10      a  acquire y -> 5
			5..900     b  acquire locks=x,y -> ok locks=x:9,y:9
			6..990     c  acquire x -> 12
			890..895   a  release y
			950..951   b  release
			5000..5001 c  release x`},
		{"many short waits are not one long wait", w, Valid, "", "", `
			0..10      a  acquire x -> 5
			1..920     z  acquire x -> 90
			50..55     a  release x
			12..150    b  acquire x -> 9
			190..195   b  release x
			12..290    c  acquire x -> 11
			300..305   c  release x
			12..390    d  acquire x -> 13
			840..845   d  release x
			950..951   z  release x`},
		{"nobody waited", w, Unknown, "no waits", "", `
			0..10      a  look x -> 0`},
	})
}

func TestCalm(t *testing.T) {
	ops := parse(t, `
		10  !  fault value=1 sequence=1
		15  !  fault value=1 sequence=2
		20  !  fault value=0 sequence=1
		30  !  fault value=0 sequence=2
		33  !  fault value=1 sequence=3
		40  !  fault value=0 sequence=3
		90  !  fault value=1 sequence=4
		99  !  heal`)
	spans := disturbed(ops, 5*time.Millisecond)
	if len(spans) != 2 || spans[0] != (span{10 * time.Millisecond, 45 * time.Millisecond}) || spans[1].to != 104*time.Millisecond {
		t.Fatalf("%v", spans)
	}
	for _, c := range []struct{ from, to, calm time.Duration }{{0, 10, 10}, {0, 50, 15}, {12, 44, 0}, {44, 95, 45}, {104, 120, 16}} {
		if got := calm(spans, c.from*time.Millisecond, c.to*time.Millisecond); got != c.calm*time.Millisecond {
			t.Errorf("from %d to %d: %v", c.from, c.to, got)
		}
	}
	if spans := disturbed(ops[:2], 0); len(spans) != 1 || spans[0].to != history.Forever {
		t.Errorf("a fault that nothing ends: %v", spans)
	}
}

func TestLiveness(t *testing.T) {
	l := Liveness{Bound: 100 * time.Millisecond}
	judge(t, []judged{
		{"all is well", l, Valid, "", "", `
			0..90    a  acquire x -> 5
			10       !  fault value=1
			20       !  fault
			30       !  heal
			95..99   a  release x
			100..150 z  final x`},
		{"a lock that nobody gets", l, Invalid, "could not get it", "z final", `
			30       !  heal
			100..150 z  final x -> fail error=not_acquired`},
		{"an acquire that does not end", l, Invalid, "did not end within", "a acquire", `
			0..      a  acquire x
			30       !  heal
			100..150 z  final x`},
		{"one that takes too long", l, Invalid, "did not end within", "a acquire", `
			0..131   a  acquire x -> 5
			30       !  heal
			140..150 z  final x`},
		{"not healed", l, Unknown, "healed", "", `
			10       !  fault value=1
			100..150 z  final x`},
		{"a fault after the heal", l, Unknown, "healed", "", `
			10       !  heal
			20       !  fault value=1
			100..150 z  final x`},
		{"no final phase", l, Unknown, "no final reads", "", `
			0..9     a  acquire x -> 5
			10       !  heal`},
	})
}
