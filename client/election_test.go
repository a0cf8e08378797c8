package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// observe collects what an election tells until its context ends.
func observe(e *client.Election) (told func() []string, end func() error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var mu sync.Mutex
	var all []string
	var last error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for leader, err := range e.Observe(ctx) {
			mu.Lock()
			if err == nil {
				all = append(all, strings.TrimSpace(leader.Candidate+" "+leader.Value))
			}
			last = err
			mu.Unlock()
		}
	}()
	return func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}, func() error {
			cancel(errReadEnough)
			<-done
			return last
		}
}

// campaign stands in the background.
func campaign(t *testing.T, e *client.Election, value string) chan *client.Leadership {
	won := make(chan *client.Leadership, 1)
	go func() {
		lead, err := e.Campaign(context.Background(), value)
		if err != nil {
			t.Errorf("campaigning with %s: %v", value, err)
		}
		won <- lead
	}()
	time.Sleep(time.Second)
	return won
}

// TestElection: candidates lead in the order in which they came, one after the other; observers are told of each and of what
// it proclaims, also while nodes end; who is cut off is not the leader any more.
func TestElection(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx := context.Background()
		a, b, third := connect(t, c, "a", client.WithTTL(5*time.Second)), connect(t, c, "b"), connect(t, c, "third")
		defer a.close()
		defer b.close()
		defer third.close()
		told, end := observe(third.Election("boss", ""))
		other, err := third.Acquire(ctx, "boss-of-another")
		if err != nil {
			t.Fatal(err)
		}
		leadA := <-campaign(t, a.Election("boss", "alice"), "at 1")
		wonB := campaign(t, b.Election("boss", "bob"), "at 2")
		if err := leadA.Proclaim(ctx, "at 3"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for i := range c.Size() {
			c.Stop(i)
			time.Sleep(2 * time.Second)
			c.Start(i)
			c.WaitReady()
		}
		if err := leadA.Proclaim(ctx, "at 4"); err != nil {
			t.Fatal(err)
		}
		c.Network.Isolate("a")
		leadB := <-wonB
		if leadA.Held() || leadB.Token() <= leadA.Token() {
			t.Errorf("two leaders: %v; tokens %d and %d", leadA.Err(), leadA.Token(), leadB.Token())
		}
		c.Network.HealAll()
		time.Sleep(time.Second)
		if err := leadB.Resign(ctx); err != nil {
			t.Fatal(err)
		}
		if err := other.Release(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want := []string{"", "alice at 1", "alice at 3", "alice at 4", "", "bob at 2", ""}
		// Between two leaders nobody leads for no time at all, which need not be seen.
		if got := told(); !slices.Equal(got, want) && !slices.Equal(got, slices.Delete(slices.Clone(want), 4, 5)) {
			t.Errorf("told was %q, want %q", got, want)
		}
		if err := end(); !errors.Is(err, errReadEnough) {
			t.Errorf("observing ended with %v", err)
		}
	})
}

// TestHandOver: leadership goes to the named candidate, past those who came before it; to nobody else, and when it is not
// there the leader stays.
func TestHandOver(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx := context.Background()
		var elections []*client.Election
		for _, name := range []string{"a", "b", "c"} {
			k := connect(t, c, name)
			defer k.close()
			elections = append(elections, k.Election("boss", name))
		}
		leadA := <-campaign(t, elections[0], "a")
		wonB := campaign(t, elections[1], "b")

		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := leadA.HandOver(short, "c"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrNotAcquired) || !leadA.Held() {
			t.Fatalf("handing over to one who is not there: %v, %v", err, leadA.Err())
		}
		if err := leadA.HandOver(ctx, "a"); !errors.Is(err, client.ErrInvalid) || !leadA.Held() {
			t.Errorf("handing over to itself: %v", err)
		}

		wonC := campaign(t, elections[2], "c")
		began := time.Now()
		if err := leadA.HandOver(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		leadC := <-wonC
		if took := time.Since(began); leadA.Held() || !leadC.Held() || took > time.Second {
			t.Errorf("after %v: %v, %v", took, leadA.Err(), leadC.Err())
		}
		// One that begins to stand while it is being called is called again.
		handed := make(chan error, 1)
		go func() { handed <- leadC.HandOver(ctx, "a") }()
		time.Sleep(3 * time.Second)
		leadA = <-campaign(t, elections[0], "a")
		if err := <-handed; err != nil {
			t.Error(err)
		}
		if err := leadA.Resign(ctx); err != nil {
			t.Fatal(err)
		}
		leadB := <-wonB
		if err := leadB.Resign(ctx); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"boss", "boss/hand-over"} {
			if now := lockState(t, c, name); len(now.Holders)+len(now.Queue) != 0 {
				t.Errorf("%s: %+v", name, now)
			}
		}
		// A campaign that is given up leaves nothing.
		lead := <-campaign(t, elections[0], "a")
		short, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := elections[1].Campaign(short, "b"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrNotAcquired) {
			t.Error(err)
		}
		if now := lockState(t, c, "boss"); len(now.Queue) != 0 {
			t.Errorf("%+v", now.Queue)
		}
		if err := lead.Resign(ctx); err != nil {
			t.Error(err)
		}
	})
}
