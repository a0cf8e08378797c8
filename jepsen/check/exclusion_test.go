package check

import "testing"

func TestExclusion(t *testing.T) {
	e := Exclusion{}
	judge(t, []judged{
		{"one after the other", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			5..40   b  acquire x -> 9
			20..50  a  release x
			60..70  b  release x`},
		{"released late, but believed no more", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			20..    a  release x
			5..21   b  acquire x -> 9
			60..70  b  release x`},
		{"released and granted in the same moment", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			20..25  a  release x
			5..20   b  acquire x -> 9
			60..70  b  release x`},
		{"both at once", e, Invalid, "both believed", "a acquire, b acquire, a release, b release", `
			0..10   a  acquire x -> 5
			5..19   b  acquire x -> 9
			20..21  a  release x
			60..70  b  release x`},
		{"different locks", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			5..19   b  acquire y -> 9
			20..21  a  release x
			60..70  b  release y`},
		{"lost in time", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			30      a  lost x lease=18
			5..19   b  acquire x -> 9
			60..70  b  release x`},
		{"lost too late", e, Invalid, "for 2ms", "", `
			0..10   a  acquire x -> 5
			30      a  lost x lease=21
			5..19   b  acquire x -> 9
			60..70  b  release x`},
		{"a release of what was lost before", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			19      a  lost x lease=18
			5..20   b  acquire x -> 9
			25..26  a  release x
			60..70  b  release x`},
		{"the lease as it was told", e, Valid, "", "", `
			0..10   a  acquire x session=s -> 5 lease=50
			0..51   b  acquire x session=t -> 9 lease=90
			60..70  a  release x session=s`},
		{"renewed, so still believed", e, Invalid, "both", "", `
			0..10   a  acquire x session=s -> 5 lease=50
			20..25  a  renew session=s -> ok lease=70
			0..51   b  acquire x session=t -> 9 lease=90`},
		{"a renewal that was refused extends nothing", e, Valid, "", "", `
			0..10   a  acquire x session=s -> 5 lease=50
			20..25  a  renew session=s -> fail lease=70
			0..51   b  acquire x session=t -> 9 lease=90`},
		{"nobody knows how long", e, Unknown, "nothing to judge", "", `
			0..10   a  acquire x -> 5
			0..51   b  acquire x -> 9`},
		{"an unknown acquire accuses nobody", e, Valid, "", "", `
			0..10   a  acquire x -> info
			0..20   b  acquire x -> 9
			30..40  b  release x`},
		{"readers beside each other", e, Valid, "", "", `
			0..10   a  acquire x mode=shared -> 5
			5..11   b  acquire x mode=shared -> 5
			20..21  a  release x
			20..22  b  release x`},
		{"a reader beside a writer", e, Invalid, "both believed", "", `
			0..10   a  acquire x mode=exclusive -> 5
			5..11   b  acquire x mode=shared -> 6
			20..21  a  release x
			20..22  b  release x`},
		{"permits enough", e, Valid, "", "", `
			0..10   a  acquire x mode=shared limit=2 -> 5
			5..11   b  acquire x mode=shared limit=2 -> 5
			20..21  a  release x
			6..22   c  acquire x mode=shared limit=2 -> 5
			40..41  b  release x
			40..41  c  release x`},
		{"a reader becomes a writer while another reads", e, Invalid, "process 1 (token 5) and process 0 (token 9)", "", `
			0..10   a  acquire x mode=shared -> 5
			0..11   b  acquire x mode=shared -> 5
			12..20  a  convert x mode=exclusive token=5 -> 9
			25..30  b  release x
			50..60  a  release x`},
		{"a writer comes while a reader waits to become one", e, Invalid, "both believed", "", `
			0..10   a  acquire x mode=shared -> 5
			12..40  a  convert x mode=exclusive token=5 -> 9
			13..20  b  acquire x -> 7
			21..22  b  release x
			50..60  a  release x`},
		{"a writer became a reader", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			12..30  a  convert x mode=shared token=5 -> 9
			13..20  b  acquire x mode=shared -> 9
			31..40  b  release x
			50..60  a  release x`},
		{"a writer became a reader, and another writer came", e, Invalid, "both believed", "", `
			0..10   a  acquire x -> 5
			12..30  a  convert x mode=shared token=5 -> 9
			31..35  b  acquire x -> 11
			36..40  b  release x
			50..60  a  release x`},
		{"a conversion that was refused leaves the hold", e, Invalid, "both believed", "", `
			0..10   a  acquire x -> 5
			12..30  a  convert x mode=shared token=5 -> fail
			31..35  b  acquire x mode=shared -> 9
			36..40  b  release x
			50..60  a  release x`},
		{"one of which nobody knows does not", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			12..30  a  convert x mode=shared token=5 -> info
			31..35  b  acquire x mode=shared -> 9
			36..40  b  release x`},
		{"one permit too many", e, Invalid, "3 believed to have one of 2", "a acquire, b acquire, c acquire, a release, b release, c release", `
			0..10   a  acquire x mode=shared limit=2 -> 5
			5..11   b  acquire x mode=shared limit=2 -> 5
			6..19   c  acquire x mode=shared limit=2 -> 5
			20..21  a  release x
			40..41  b  release x
			42..43  c  release x`},
		{"several at once", e, Invalid, "y:", "a acquire, b acquire, a release, b release", `
			0..10   a  acquire locks=x,y -> ok locks=x:5,y:5
			0..19   b  acquire locks=y,z -> ok locks=y:7,z:7
			20..21  a  release
			40..41  b  release`},
		{"forced by an operator", e, Valid, "", "", `
			0..10   a  acquire x -> 5
			12..14  c  force x token=5
			5..19   b  acquire x -> 9
			20..21  a  release x
			60..70  b  release x`},
		{"a cancel ends what it finds", e, Valid, "", "", `
			0..10   a  acquire x session=s request=1 -> 5
			15..16  c  cancel session=s request=1
			5..19   b  acquire x session=t request=1 -> 9
			20..21  a  release x session=s request=1 -> fail
			60..70  b  release x session=t request=1`},
		{"a close, too", e, Valid, "", "", `
			0..10   a  acquire x session=s request=1 -> 5
			15..16  c  close session=s
			5..19   b  acquire x session=t request=1 -> 9
			20..21  a  release x session=s request=1 -> fail
			60..70  b  release x session=t request=1`},
		{"the history cannot be", e, Unknown, "cannot be", "", `
			0..10   a  acquire x -> 5
			5..9    a  release x`},
	})
}

func TestTokens(t *testing.T) {
	c := Tokens{}
	judge(t, []judged{
		{"rising", c, Valid, "", "", `
			0..10   a  acquire x -> 5
			20..21  a  release x
			22..30  b  acquire x -> 9`},
		{"falling", c, Invalid, "token 3 was granted to process 1", "a acquire, b acquire", `
			0..10   a  acquire x -> 5
			20..21  a  release x
			22..30  b  acquire x -> 3`},
		{"in any order when at the same time", c, Valid, "", "", `
			0..10   a  acquire x -> 5
			0..30   b  acquire x -> 3`},
		{"the same twice", c, Invalid, "the same token 5", "a acquire, b acquire", `
			0..10   a  acquire x -> 5
			0..30   b  acquire x -> 5`},
		{"the same for two readers", c, Valid, "", "", `
			0..10   a  acquire x mode=shared -> 5
			20..30  b  acquire x mode=shared -> 5`},
		{"the same for a reader and a writer", c, Invalid, "the same token 5", "", `
			0..10   a  acquire x mode=shared -> 5
			20..30  b  acquire x mode=exclusive -> 5`},
		{"a reader after a later writer", c, Invalid, "token 5", "b acquire, c acquire", `
			0..10   a  acquire x mode=shared -> 5
			20..30  b  acquire x mode=exclusive -> 7
			40..50  c  acquire x mode=shared -> 5`},
		{"counted for each lock", c, Invalid, "token 1 was granted", "b acquire, c acquire", `
			0..10   a  acquire x -> 1
			20..30  b  acquire x -> 2
			40..50  c  acquire y -> 1`},
		{"one for two locks, one after the other", c, Invalid, "token 5 was granted", "", `
			0..10   a  acquire x -> 5
			20..30  b  acquire y -> 5`},
		{"several at once have the same", c, Valid, "", "", `
			0..10   a  acquire locks=x,y -> ok locks=x:5,y:5
			20..30  b  acquire x -> 7`},
		{"a repeated message is one grant", c, Valid, "", "", `
			0..10   a  acquire x session=s request=1 -> 5
			20..30  b  acquire x session=s request=1 -> 5`},
		{"a repeated message counts from the first", c, Valid, "", "", `
			0..9    a  acquire x session=s request=1 -> fail
			10..11  b  acquire y -> 7
			20..30  a  acquire x session=s request=1 -> 5`},
		{"without a token", c, Invalid, "without a token", "", `
			0..10   a  acquire x`},
		{"unknown outcomes say nothing", c, Unknown, "nothing", "", `
			0..10   a  acquire x -> info`},
	})
}
