package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// withCluster runs a test against three real nodes in virtual time.
func withCluster(t *testing.T, test func(*testing.T, *pawltest.Cluster)) {
	t.Helper()
	pawltest.Run(t, pawltest.Options{}, test)
}

// TestCancelAtTheMomentOfGrant cancels a waiter around the release of the holder. Either it has the lock, or an error and
// then neither holds nor waits (A02).
func TestCancelAtTheMomentOfGrant(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		holder := connect(t, c, "holder")
		defer holder.close()
		waiter := connect(t, c, "waiter")
		defer waiter.close()
		granted, cancelled := 0, 0
		rounds := 500
		if testing.Short() {
			rounds = 100 // under the race detector
		}
		if *client.Long {
			rounds = 2000
		}
		for round := range rounds {
			held, err := holder.Acquire(context.Background(), "x")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var got *client.Lock
			var gotErr error
			var waiting sync.WaitGroup
			waiting.Go(func() { got, gotErr = waiter.Acquire(ctx, "x") })
			time.Sleep(5 * time.Millisecond)
			until := time.Duration(random.IntN(4000)) * time.Microsecond
			waiting.Go(func() {
				time.Sleep(until)
				cancel()
			})
			time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
			if err := held.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			waiting.Wait()
			cancel()
			switch {
			case gotErr == nil:
				granted++
				if now := lockState(t, c, "x"); len(now.Holders) != 1 || now.Holders[0].Owner != "waiter" || now.Holders[0].Token != got.Token() {
					t.Fatalf("round %d: the waiter has token %d; the server says %+v", round, got.Token(), now)
				}
				if err := got.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
			case errors.Is(gotErr, context.Canceled) && errors.Is(gotErr, client.ErrNotAcquired):
				cancelled++
				time.Sleep(20 * time.Millisecond)
				if now := lockState(t, c, "x"); len(now.Holders) != 0 || len(now.Queue) != 0 {
					t.Fatalf("round %d: the waiter gave up; the server says %+v", round, now)
				}
			default:
				t.Fatalf("round %d: %v", round, gotErr)
			}
		}
		if granted == 0 || cancelled == 0 {
			t.Errorf("%d granted, %d cancelled: the race was never close", granted, cancelled)
		}
		t.Logf("%d granted, %d cancelled", granted, cancelled)
	})
}

// TestOneClientTwoGoroutines locks one name twice in one client: the second waits for the first, each has a token of its
// own, and releasing the first leaves the second alone (A28).
func TestOneClientTwoGoroutines(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "one")
		defer k.close()
		first, err := k.Acquire(context.Background(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.TryAcquire(context.Background(), "x"); !errors.Is(err, client.ErrHeld) {
			t.Fatalf("trying what this client holds: %v", err)
		}
		second := make(chan *client.Lock)
		go func() {
			l, err := k.Acquire(context.Background(), "x")
			if err != nil {
				t.Error(err)
			}
			second <- l
		}()
		time.Sleep(time.Minute)
		select {
		case <-second:
			t.Fatal("the second did not wait for the first")
		default:
		}
		if err := first.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		l := <-second
		if l.Token() <= first.Token() {
			t.Errorf("tokens %d, then %d", first.Token(), l.Token())
		}
		if err := first.Release(context.Background()); err != nil {
			t.Errorf("releasing again: %v", err)
		}
		if !l.Held() {
			t.Error("releasing the first again ended the second")
		}
		if err := l.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLostBeforeAnybodyElse cuts a holder off: it knows that it has lost before the next one is granted, each time (A09,
// I4).
func TestLostBeforeAnybodyElse(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		rounds := 20
		if *client.Long {
			rounds = 100
		}
		for round := range rounds {
			name := fmt.Sprintf("x%d", round)
			holder := connect(t, c, fmt.Sprintf("holder%d", round), client.WithTTL(5*time.Second))
			waiter := connect(t, c, "waiter", client.WithTTL(5*time.Second))
			held, err := holder.Acquire(context.Background(), name)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(round*317) * time.Millisecond)
			c.Network.Isolate(fmt.Sprintf("holder%d", round))
			cut := time.Now()
			var granted time.Time
			next := make(chan *client.Lock, 1)
			go func() {
				l, err := waiter.Acquire(context.Background(), name)
				if err != nil {
					t.Error(err)
				}
				granted = time.Now()
				next <- l
			}()
			<-held.Done()
			lost := time.Now()
			if held.Held() || !errors.Is(held.Err(), client.ErrLost) {
				t.Errorf("round %d: lost, but held %v, err %v", round, held.Held(), held.Err())
			}
			l := <-next
			if !lost.Before(granted) || lost.Sub(cut) > 5*time.Second {
				t.Errorf("round %d: lost %v after the cut, granted to another %v after it", round, lost.Sub(cut), granted.Sub(cut))
			}
			if l.Token() <= held.Token() {
				t.Errorf("round %d: tokens %d, then %d", round, held.Token(), l.Token())
			}
			c.Network.HealAll()
			waiter.close()
			holder.close()
		}
	})
}

// TestHoldsThroughRollingRestart restarts every node in turn while a client holds 100 locks: none is lost, all tokens are
// as before (A08, B05).
func TestHoldsThroughRollingRestart(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "holder", client.WithTTL(10*time.Second))
		defer k.close()
		var locks []*client.Lock
		for i := range 100 {
			l, err := k.Acquire(context.Background(), fmt.Sprintf("lock-%d", i))
			if err != nil {
				t.Fatal(err)
			}
			locks = append(locks, l)
		}
		for i := range c.Size() {
			c.Stop(i)
			time.Sleep(3 * time.Second)
			c.Start(i)
			c.WaitReady()
		}
		for i := range c.Size() {
			c.Crash(i)
			time.Sleep(3 * time.Second)
			c.Start(i)
			c.WaitReady()
		}
		for _, l := range locks {
			if !l.Held() {
				t.Fatalf("%s: %v", l.Name(), l.Err())
			}
			if now := lockState(t, c, l.Name()); len(now.Holders) != 1 || now.Holders[0].Token != l.Token() {
				t.Fatalf("%s has token %d; the server says %+v", l.Name(), l.Token(), now)
			}
		}
	})
}

// TestIdleConnectionClosedUnderARequest sends a request each time the server is about to close the idle connection: no
// error reaches the user, and nothing is granted twice (D09).
func TestIdleConnectionClosedUnderARequest(t *testing.T) {
	const idle = 2 * time.Minute // the server's
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "one")
		defer k.close()
		tokens := map[transport.Token]bool{}
		rounds := 25
		if *client.Long {
			rounds = 3000
		}
		for i := range rounds {
			// Around the moment at which the server's FIN and the next request cross.
			time.Sleep(idle - 600*time.Microsecond + time.Duration(i%25)*50*time.Microsecond)
			g, err := k.Calls().Acquire(context.Background(), transport.AcquireRequest{Name: "x", Owner: "one"}, fmt.Sprintf("key-%d", i))
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			if tokens[g.Token] {
				t.Fatalf("request %d: token %d again", i, g.Token)
			}
			tokens[g.Token] = true
			if _, err := k.Calls().Release(context.Background(), transport.ReleaseRequest{Session: g.Session, Token: g.Token}); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
	})
}

// TestLostWithItsCluster puts a new cluster in the place of the one that granted a lock: the holder is told so.
func TestLostWithItsCluster(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "holder", client.WithTTL(time.Minute))
		defer k.close()
		l, err := k.Acquire(context.Background(), "x")
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Size() {
			c.Stop(i)
			c.Wipe(i)
		}
		for i := range c.Size() {
			c.Start(i)
		}
		c.WaitReady()
		<-l.Done()
		if !errors.Is(l.Err(), client.ErrLost) || !errors.Is(l.Err(), client.ReasonClusterChanged) {
			t.Errorf("lost for %v", l.Err())
		}
		if again, err := k.Acquire(context.Background(), "x"); err != nil || !again.Held() {
			t.Errorf("in the new cluster: %v", err)
		}
	})
}

// testClient is a client at a host of its own, on the bubble's clock, that is closed before the bubble ends.
type testClient struct {
	*client.Client
	close func()
}

func connect(t *testing.T, c *pawltest.Cluster, host string, options ...client.Option) testClient {
	t.Helper()
	http := c.ClientAt(host)
	options = append([]client.Option{client.WithHTTPClient(http), client.WithOwner(host), client.WithClock(c.Clock())}, options...)
	k, err := client.New(c.URLs(), options...)
	if err != nil {
		t.Fatal(err)
	}
	return testClient{k, func() {
		if err := k.Close(context.Background()); err != nil {
			t.Errorf("closing %s: %v", host, err)
		}
		http.CloseIdleConnections()
	}}
}

func lockState(t *testing.T, c *pawltest.Cluster, name string) transport.LockResponse {
	t.Helper()
	var out transport.LockResponse
	c.MustGet(c.Leader(), "/v1/lock?name="+name).Into(t, &out)
	return out
}
