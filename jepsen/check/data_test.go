package check

import "testing"

func TestLostUpdates(t *testing.T) {
	c := LostUpdates{}
	judge(t, []judged{
		{"a chain", c, Valid, "", "", `
			0..1    a  write x previous=0 value=11 token=5 sequence=1
			2..3    b  write x previous=11 value=22 token=6 sequence=1
			9..10   z  final x -> ok value=22`},
		{"one is lost", c, Invalid, "the write of 11 by process 0", "a write, b write, z final", `
			0..1    a  write x previous=0 value=11 token=5
			2..3    b  write x previous=0 value=22 token=6
			9..10   z  final x -> ok value=22`},
		{"a refused write is no loss", c, Valid, "", "", `
			0..1    a  write x previous=0 value=11 token=5 -> fail error=stale
			2..3    b  write x previous=0 value=22 token=6
			9..10   z  final x -> ok value=22`},
		{"an unknown write that came to nothing", c, Valid, "", "", `
			0..1    a  write x previous=0 value=11 token=5 -> info
			2..3    b  write x previous=0 value=22 token=6
			9..10   z  final x -> ok value=22`},
		{"an unknown write that was done", c, Valid, "", "", `
			0..     a  write x previous=0 value=11 token=5
			2..3    b  write x previous=11 value=22 token=6
			9..10   z  final x -> ok value=22`},
		{"an unknown write took another's place", c, Invalid, "the write of 22", "", `
			2..3    b  write x previous=0 value=22 token=6
			0..     a  write x previous=0 value=11 token=5
			9..10   z  final x -> ok value=11`},
		{"a refused write was done", c, Invalid, "whose write was refused", "a write, z final", `
			0..1    a  write x previous=0 value=11 token=5 -> fail
			9..10   z  final x -> ok value=11`},
		{"a value from nowhere", c, Invalid, "which nobody wrote", "", `
			0..1    a  write x previous=7 value=11 token=5
			9..10   z  final x -> ok value=11`},
		{"the last is lost", c, Invalid, "(and others)", "", `
			0..1    a  write x previous=0 value=11 token=5
			2..3    b  write x previous=11 value=22 token=6
			9..10   z  final x -> ok value=0`},
		{"an older token after a newer one", c, Invalid, "older stamp (4, 1) followed one with (5, 1)", "a write, b write", `
			0..1    a  write x previous=0 value=11 token=5 sequence=1
			2..3    b  write x previous=11 value=22 token=4 sequence=1
			9..10   z  final x -> ok value=22`},
		{"whether the lock is free says nothing of the register", c, Valid, "", "", `
			0..1    a  write x previous=0 value=11 token=5
			8..9    z  final x note=row -> ok value=11
			9..10   z  final x note=free`},
		{"registers by themselves", c, Valid, "", "", `
			0..1    a  write x previous=0 value=11 token=5
			2..3    b  write y previous=0 value=22 token=6
			8..9    z  final x -> ok value=11
			9..10   z  final y -> ok value=22`},
		{"not read in the end", c, Unknown, "was not read", "", `
			0..1    a  write x previous=0 value=11 token=5`},
		{"nothing was written", c, Unknown, "no writes", "", `
			8..9    z  final x -> ok value=0`},
		{"values that say nothing", c, Unknown, "not unique", "", `
			0..1    a  write x previous=0 value=11 token=5
			2..3    b  write x previous=11 value=11 token=6
			9..10   z  final x -> ok value=11`},
	})
}

func TestLostUpdatesAreCounted(t *testing.T) {
	v := LostUpdates{}.Check(parse(t, `
		0..1    a  write x previous=0 value=11
		2..3    b  write x previous=0 value=22
		4..5    c  write x previous=22 value=33
		6..7    d  write x previous=0 value=44
		9..10   z  final x -> ok value=44`))
	if v.Figures["lost updates"] != 3 || v.Figures["writes"] != 4 {
		t.Errorf("%v", v.Figures)
	}
}

func TestSet(t *testing.T) {
	c := Set{}
	judge(t, []judged{
		{"all there", c, Valid, "", "", `
			0..1    a  add x value=1
			2..3    b  add x value=2 -> info
			4..     c  add x value=3
			5..6    d  add x value=4 -> fail
			9..10   z  final x -> ok values=1,3`},
		{"one is lost", c, Invalid, "1 was added and is lost", "a add, z final", `
			0..1    a  add x value=1
			2..3    b  add x value=2
			9..10   z  final x -> ok values=2`},
		{"one was refused", c, Invalid, "was refused and is there", "", `
			0..1    a  add x value=1 -> fail
			9..10   z  final x -> ok values=1`},
		{"one from nowhere", c, Invalid, "7 was never added", "", `
			0..1    a  add x value=1
			9..10   z  final x -> ok values=1,7`},
		{"one twice", c, Invalid, "twice", "", `
			0..1    a  add x value=1
			9..10   z  final x -> ok values=1,1`},
		{"not read", c, Unknown, "was not read", "", `
			0..1    a  add x value=1`},
	})
}

func TestBank(t *testing.T) {
	c := Bank{Total: 200}
	judge(t, []judged{
		{"constant", c, Valid, "", "", `
			0..1    a  transfer locks=x,y value=5
			2..3    b  read -> ok values=95,105
			4..5    z  final -> ok values=95,105`},
		{"half a transfer", c, Invalid, "saw 195", "b read", `
			0..1    a  transfer locks=x,y value=5
			2..3    b  read -> ok values=95,100
			4..5    z  final -> ok values=95,105`},
		{"nothing was transferred", c, Unknown, "no transfers", "", `
			4..5    z  final -> ok values=95,105`},
		{"nothing was read", c, Unknown, "no reads of all", "", `
			0..1    a  transfer locks=x,y value=5`},
	})
}

func TestRequests(t *testing.T) {
	c := Requests{}
	judge(t, []judged{
		{"repeated", c, Valid, "", "", `
			0..1    a  acquire x session=s request=1 -> 5
			0..2    b  acquire x session=s request=1 -> info
			0..3    c  acquire x session=s request=1 -> 5
			4..5    a  release x session=s request=1
			6..7    d  acquire x session=s request=1 -> fail error=finished`},
		{"granted twice", c, Invalid, "tokens 5 and 7", "a acquire, c acquire", `
			0..1    a  acquire x session=s request=1 -> 5
			0..3    c  acquire x session=s request=1 -> 7`},
		{"granted again after its release", c, Invalid, "ended by release", "a release, d acquire", `
			0..1    a  acquire x session=s request=1 -> 5
			4..5    a  release x session=s request=1
			6..7    d  acquire x session=s request=1 -> 5`},
		{"granted after its cancel", c, Invalid, "ended by cancel", "a cancel, d acquire", `
			4..5    a  cancel session=s request=1
			6..7    d  acquire x session=s request=1 -> 5`},
		{"granted while it is cancelled", c, Valid, "", "", `
			4..6    a  cancel session=s request=1
			5..7    d  acquire x session=s request=1 -> 5`},
		{"numbers of different sessions", c, Valid, "", "", `
			0..1    a  acquire x session=s request=1 -> 5
			0..3    c  acquire x session=t request=1 -> 7`},
		{"no numbers", c, Unknown, "no requests", "", `
			0..1    a  acquire x -> 5`},
	})
}

func TestFairness(t *testing.T) {
	c := Fairness{}
	judge(t, []judged{
		{"in turn", c, Valid, "", "", `
			0..1    a  queue x session=s request=1
			2..3    b  queue x session=t request=1
			4..20   a  acquire x session=s request=1 -> 5
			4..30   b  acquire x session=t request=1 -> 9`},
		{"overtaken", c, Invalid, "process 1 (token 5) overtook process 0 (token 9)", "a queue, b queue, b acquire, a acquire", `
			0..1    a  queue x session=s request=1
			2..3    b  queue x session=t request=1
			4..20   b  acquire x session=t request=1 -> 5
			4..30   a  acquire x session=s request=1 -> 9`},
		{"asked at the same time", c, Valid, "", "", `
			0..3    a  queue x session=s request=1
			2..4    b  queue x session=t request=1
			5..20   b  acquire x session=t request=1 -> 5
			4..30   a  acquire x session=s request=1 -> 9
			31..32  d  queue x session=u request=1 -> 11`},
		{"who gave up was not overtaken", c, Unknown, "no pairs", "", `
			0..1    a  queue x session=s request=1
			2..3    b  queue x session=t request=1
			4..20   b  acquire x session=t request=1 -> 5
			4..30   a  acquire x session=s request=1 -> fail`},
		{"granted at once", c, Invalid, "overtook", "", `
			0..1    a  queue x session=s request=1
			2..3    b  queue x session=t request=1 -> 5
			4..30   a  acquire x session=s request=1 -> 9`},
		{"its place is not known", c, Unknown, "no pairs", "", `
			0..1    a  queue x session=s request=1 -> info
			2..3    b  queue x session=t request=1
			4..20   b  acquire x session=t request=1 -> 5
			4..30   c  acquire x session=s request=1 -> 9`},
	})
}

func TestReads(t *testing.T) {
	c := Reads{}
	judge(t, []judged{
		{"as it was", c, Valid, "", "", `
			0..1    a  acquire x -> 5
			2..3    b  look x -> 5 log=7
			4..6    a  release x
			5..7    b  look x -> 5 log=8
			8..9    b  look x -> 0 log=9`},
		{"a grant is not shown", c, Invalid, "a look shows 0", "a acquire, b look, a release", `
			0..1    a  acquire x -> 5
			2..3    b  look x -> 0
			4..6    a  release x`},
		{"another grant is shown", c, Invalid, "a look shows 9", "", `
			0..1    a  acquire x -> 5
			2..3    b  look x -> 9
			4..6    a  release x`},
		{"what was released is shown", c, Invalid, "which was released before", "", `
			0..1    a  acquire x -> 5
			4..6    a  release x
			8..9    b  look x -> 5`},
		{"an older one is shown", c, Invalid, "a look shows token 5, though 9", "b acquire, d look", `
			0..1    a  acquire x -> 5
			2       a  lost x lease=2
			3..4    b  acquire x -> 9
			8..9    d  look x -> 5`},
		{"a hold of which nobody knows may be shown", c, Valid, "", "", `
			0..1    a  acquire x -> 5
			4..6    a  release x
			7..     b  acquire x
			8..9    c  look x -> 9`},
		{"a hold may have ended during the look", c, Valid, "", "", `
			0..1    a  acquire x -> 5
			2..6    b  look x -> 0
			3..4    a  release x`},
		{"a hold may have ended when its holder believes no more", c, Valid, "", "", `
			0..1    a  acquire x -> 5
			2       a  lost x lease=2
			3..4    c  look x -> 0`},
		{"an older index", c, Invalid, "index 7, after", "b look, c look", `
			0..1    b  look x -> 0 log=8
			2..3    c  look x -> 0 log=7`},
		{"an older index at the same time", c, Valid, "", "", `
			0..3    b  look x -> 0 log=8
			2..4    c  look x -> 0 log=7`},
		{"looks of which nobody knows", c, Unknown, "no looks", "", `
			0..3    b  look x -> info`},
	})
}

func TestDigests(t *testing.T) {
	judge(t, []judged{
		{"equal", Digests{Nodes: 3}, Valid, "", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n2 log=7 note=abc
			2  a  digest node=n1 log=8 note=abd
			2  a  digest node=n3 log=7 note=abc`},
		{"different", Digests{}, Invalid, "at index 7, n1 and n2", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n2 log=7 note=abd`},
		{"a node that did not say", Digests{}, Unknown, "no compared", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n2 log=7 error=stopped`},
		{"never at the same index", Digests{}, Unknown, "no compared", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n2 log=8 note=abc`},
		{"the same node twice", Digests{}, Unknown, "no compared", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n1 log=7 note=abc`},
		{"not all", Digests{Nodes: 3}, Unknown, "only 2 of 3", "", `
			1  a  digest node=n1 log=7 note=abc
			2  a  digest node=n2 log=7 note=abc`},
	})
}

func TestLogs(t *testing.T) {
	for text, want := range map[string]Outcome{
		"10:00 [INFO] all is well\n":              Valid,
		"10:00 [ERROR] somebody said panic: no\n": Valid,
		"": Unknown,
		"10:00 [INFO] well\npanic: nil map\n\ngoroutine 1":  Invalid,
		"==================\nWARNING: DATA RACE\nRead at\n": Invalid,
		"fatal error: all goroutines are asleep\n":          Invalid,
		"2026/01/01 10:00:00 http: panic serving 1.2.3.4\n": Invalid,
	} {
		if v := (Logs{map[string]string{"n1": text}}).Check(nil); v.Outcome != want {
			t.Errorf("%q: %+v", text, v)
		}
	}
}
