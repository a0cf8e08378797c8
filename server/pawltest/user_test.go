package pawltest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// TestLockIsLostOnDemand is what the package's documentation shows: a lock that is lost by force, and by being cut off.
func TestLockIsLostOnDemand(t *testing.T) {
	pawltest.Run(t, pawltest.Options{}, func(t *testing.T, cluster *pawltest.Cluster) {
		pawl, err := client.New(cluster.URLs(), client.WithHTTPClient(cluster.ClientAt("worker")), client.WithClock(cluster.Clock()))
		if err != nil {
			t.Fatal(err)
		}
		defer pawl.Close(t.Context())
		for _, shared := range []bool{false, true} {
			var options []client.AcquireOption
			if shared {
				options = append(options, client.Shared())
			}
			began := time.Now()
			lock, err := pawl.Acquire(t.Context(), "a report & more", options...)
			if err != nil {
				t.Fatal(err)
			}
			beside, err := pawl.TryAcquire(t.Context(), "a report & more", options...)
			if shared != (err == nil) {
				t.Fatal(err)
			}
			cluster.Lose("a report & more", "the test wants it so")
			<-lock.Done()
			if beside != nil {
				<-beside.Done()
			}
			var why *client.LostError
			if !errors.As(lock.Err(), &why) || why.Reason != client.ReasonRevoked || why.Detail != "the test wants it so" || time.Since(began) > 6*time.Second {
				t.Errorf("lost after %v: %v", time.Since(began), lock.Err())
			}
		}
		lock, err := pawl.Acquire(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		cluster.Network.Isolate("worker")
		<-lock.Done()
		if !errors.Is(lock.Err(), client.ReasonUnreachable) {
			t.Error(lock.Err())
		}
		cluster.Network.Rejoin("worker")
	})
}
