package fence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/transport"
)

func exclusive(token, sequence uint64) fence.Stamp {
	return fence.Stamp{Token: token, Sequence: sequence}
}
func shared(token uint64) fence.Stamp { return fence.Stamp{Token: token, Shared: true} }

func TestRule(t *testing.T) {
	for _, c := range []struct {
		offered, newest fence.Stamp
		allowed         bool
	}{
		{exclusive(5, 1), fence.Stamp{}, true},
		{shared(5), fence.Stamp{}, true},
		{exclusive(5, 1), exclusive(5, 1), false}, // repeated
		{exclusive(5, 2), exclusive(5, 1), true},
		{exclusive(5, 1), exclusive(5, 2), false}, // overtaken
		{exclusive(6, 1), exclusive(5, 9), true},
		{exclusive(5, 9), exclusive(6, 1), false}, // an old holder
		{shared(5), shared(5), true},
		{shared(4), shared(5), false},
		{shared(6), shared(5), true},
		{exclusive(5, 1), shared(5), false}, // a period's token belongs to the period
		{exclusive(5, fence.MaxSequence), shared(5), false},
		{exclusive(6, 1), shared(5), true},
		{exclusive(4, 9), shared(5), false},
		{shared(5), exclusive(5, 3), true},
		{shared(4), exclusive(5, 1), false},
		{shared(6), exclusive(5, 1), true},
		{exclusive(uint64(transport.MaxToken), fence.MaxSequence), exclusive(uint64(transport.MaxToken), fence.MaxSequence-1), true},
	} {
		err := c.offered.Allowed(c.newest)
		if (err == nil) != c.allowed {
			t.Errorf("%v after %v: %v", c.offered, c.newest, err)
		}
		if err == nil {
			continue
		}
		var stale *fence.StaleError
		if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Offered != c.offered || stale.Newest != c.newest {
			t.Errorf("%v after %v: %#v", c.offered, c.newest, err)
			continue
		}
		if stale.Repeated() != (!c.offered.Shared && c.offered == c.newest) || stale.SameHold() != (c.offered.Token == c.newest.Token) {
			t.Errorf("%v after %v: repeated %t, same hold %t", c.offered, c.newest, stale.Repeated(), stale.SameHold())
		}
	}
	for _, s := range []fence.Stamp{
		{}, {Sequence: 1}, {Shared: true}, {Token: 5}, {Token: 5, Sequence: 1, Shared: true},
		{Token: uint64(transport.MaxToken) + 1, Sequence: 1}, {Token: 5, Sequence: fence.MaxSequence + 1},
	} {
		if err := s.Allowed(fence.Stamp{}); !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrStale) {
			t.Errorf("%#v: %v", s, err)
		}
	}
}

// TestMarkIsTheRule: what storage compares, two numbers, is the rule.
func TestMarkIsTheRule(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	stamp := func() fence.Stamp {
		if random.IntN(3) == 0 {
			return shared(1 + random.Uint64N(4))
		}
		return exclusive(1+random.Uint64N(4), 1+random.Uint64N(4))
	}
	for range 10_000 {
		offered, newest := stamp(), stamp()
		token, sequence := offered.Mark()
		seenToken, seenSequence := newest.Mark()
		allowed := token > seenToken || token == seenToken && sequence > seenSequence
		if offered.Shared {
			allowed = token >= seenToken
		}
		if (offered.Allowed(newest) == nil) != allowed {
			t.Fatalf("%v after %v", offered, newest)
		}
		if back := fence.FromMark(token, sequence); back != offered {
			t.Fatalf("%v came back as %v", offered, back)
		}
	}
}

// hold is a lock that is held, whose first name is a.
type hold map[string]transport.GrantedLock

func (h hold) Name() string                              { return "a" }
func (h hold) GrantOf(name string) transport.GrantedLock { return h[name] }

var _ fence.Lock = (*client.Lock)(nil)

func TestStamperAndContext(t *testing.T) {
	held := hold{"a": {Name: "a", Mode: transport.ModeExclusive, Token: 7}, "b": {Name: "b", Mode: transport.ModeShared, Token: 5}}
	stamper := fence.NewStamper(held)
	if a, b := stamper.Next(), stamper.Next(); a != exclusive(7, 1) || b != exclusive(7, 2) {
		t.Errorf("%v, %v", a, b)
	}
	var all sync.Map
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 1000 {
				if _, twice := all.LoadOrStore(stamper.Next(), true); twice {
					t.Error("a stamp was given twice")
				}
			}
		})
	}
	group.Wait()
	held["a"] = transport.GrantedLock{Name: "a", Mode: transport.ModeShared, Token: 8} // converted
	if a, b := stamper.Next(), stamper.NextOf("a"); a != shared(8) || b != shared(8) {
		t.Errorf("after a conversion: %v, %v", a, b)
	}
	held["a"] = transport.GrantedLock{Name: "a", Mode: transport.ModeExclusive, Token: 9} // … and back
	if next := stamper.Next(); next != exclusive(9, 8003) || !next.Above(exclusive(7, 8002)) {
		t.Errorf("after a conversion: %v", next)
	}
	if stamp := stamper.NextOf("c"); !errors.Is(stamp.Validate(), fence.ErrInvalid) {
		t.Errorf("of a name that is not held: %v", stamp)
	}
	ctx := fence.WithStamp(context.Background(), stamper.NextOf("b"))
	if s, found := fence.StampFrom(ctx); !found || s != shared(5) {
		t.Errorf("%v %t", s, found)
	}
	if _, found := fence.StampFrom(context.Background()); found {
		t.Error("a stamp out of nowhere")
	}
}

func TestParse(t *testing.T) {
	for _, s := range []fence.Stamp{exclusive(1, 1), shared(41), exclusive(uint64(transport.MaxToken), fence.MaxSequence)} {
		if back, err := fence.Parse(s.String()); err != nil || back != s {
			t.Errorf("%v: %v %v", s, back, err)
		}
	}
	for _, text := range []string{
		"", ".", "41", "41.", ".7", "41.0", "0.1", "041.7", "41.07", "+41.7", "41.-7", "41.7 ", " 41.7", "41.S", "41.ss", "41.s.", "41.7.1", "41,7",
		"9007199254740992.1", "1.9007199254740991", "18446744073709551617.1", "4_1.7", "0x29.7", "٤١.7", "41.7\n", "00000000000000000000000000000000041.7",
	} {
		if s, err := fence.Parse(text); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %v %v", text, s, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"41.7", "41.s", "41", "041.7", "9007199254740991.9007199254740990"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		stamp, err := fence.Parse(text)
		if err == nil && (stamp.Validate() != nil || stamp.String() != text) {
			t.Fatalf("%q was read as %#v", text, stamp)
		}
		if err != nil && !errors.Is(err, fence.ErrInvalid) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		resource fence.Resource
		first    string
	}{
		{fence.Resource{Transactions: true, CompareAndSet: true, OwnService: true}, "sqlfence.Guard.Check"},
		{fence.Resource{CompareAndSet: true, OwnService: true}, "sqlfence.Guard.Update"},
		{fence.Resource{OwnProcess: true, OwnService: true}, "fence.Guard"},
		{fence.Resource{OwnService: true}, "httpfence"},
	} {
		if fit := c.resource.Fit(); fit.Kits[0] != c.first || fit.Advice == "" {
			t.Errorf("%+v: %+v", c.resource, fit)
		}
	}
	if fit := (fence.Resource{}).Fit(); len(fit.Kits) != 0 || fit.Advice == "" {
		t.Errorf("what cannot be fenced: %+v", fit)
	}
}
