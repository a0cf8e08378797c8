package check

import "testing"

func TestStrays(t *testing.T) {
	judge(t, []judged{
		{"refused", Strays{}, Valid, "", "", `
			0..10  a  acquire x session=s request=1 -> 5
			20..25 a  stray session=s request=1 token=4 -> fail`},
		{"done", Strays{}, Invalid, "token 4, which is of another grant", "a stray", `
			0..10  a  acquire x session=s request=1 -> 5
			20..25 a  stray session=s request=1 token=4`},
		{"nobody knows", Strays{}, Unknown, "nothing to judge", "", `
			0..10  a  acquire x session=s request=1 -> 5
			20..25 a  stray session=s request=1 token=4 -> info`},
	})
}

func TestStrayEndsNoBelief(t *testing.T) {
	judge(t, []judged{
		{"its own hold was ended", Exclusion{}, Invalid, "both believed", "", `
			0..10  a  acquire x session=s request=1 -> 5 lease=1000
			20..25 a  stray session=s request=1 token=4
			21..30 b  acquire x -> 9
			100..101 b release x`},
		{"another's hold was ended", Exclusion{}, Invalid, "both believed", "", `
			0..10  a  acquire x session=s request=1 -> 5 lease=1000
			0..11  b  acquire y session=t request=1 -> 6 lease=1000
			20..25 b  stray session=t request=1 token=5
			21..30 c  acquire x -> 9
			100..101 c release x`},
	})
}
