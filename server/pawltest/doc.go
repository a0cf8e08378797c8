// Package pawltest runs whole Pawl clusters in one process, for tests: Pawl's own, and those of programs that use locks.
//
// In the bubble that Run makes, time is virtual: waiting for a lease to end takes no time, and a goroutine that is left behind
// fails the test. What a client needs is there: endpoints, connections from a host that can be cut off, and the clock.
//
//	func TestWorkerStopsWhenItLosesItsLock(t *testing.T) {
//		pawltest.Run(t, pawltest.Options{}, func(t *testing.T, cluster *pawltest.Cluster) {
//			pawl, err := client.New(cluster.URLs(), client.WithHTTPClient(cluster.ClientAt("worker")), client.WithClock(cluster.Clock()))
//			if err != nil {
//				t.Fatal(err)
//			}
//			defer pawl.Close(t.Context())
//			lock, err := pawl.Acquire(t.Context(), "report")
//			if err != nil {
//				t.Fatal(err)
//			}
//			cluster.Lose("report", "the test wants it so") // an operator takes it; or, nothing reaches the worker any more:
//			cluster.Network.Isolate("worker")
//			<-lock.Done()
//			// … the worker must have stopped by now
//			cluster.Network.Rejoin("worker")
//		})
//	}
//
// Nodes can be stopped, crashed and started again (Stop, Crash, Start) and links cut, slowed and healed (Network).
package pawltest
