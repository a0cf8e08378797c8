package server_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// BenchmarkAcquireRelease measures what a lock costs on three real nodes on this machine's loopback and disk: an
// acquire and a release over HTTP, each client with a lock of its own. Beside the time it prints what does not drift
// with the machine: log entries for one acquire and release. The clients share the machine with the nodes.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, clients := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := pawltest.New(b, pawltest.Options{TCP: true})
			defer c.Close()
			c.WaitReady()
			leader := c.Leader()
			before := lastIndex(b, c, leader)
			b.ReportAllocs()
			b.ResetTimer()
			var running sync.WaitGroup
			for k := range clients {
				rounds := b.N / clients
				if k < b.N%clients {
					rounds++
				}
				running.Go(func() {
					acquire := fmt.Sprintf(`{"name":"lock-%d","owner":"client-%d"}`, k, k)
					for range rounds {
						a, err := c.Post(context.Background(), leader, "/v1/acquire", acquire)
						if err != nil || a.Status != http.StatusOK {
							b.Errorf("acquire: %v %s", err, a.Body)
							return
						}
						var g transport.AcquireResponse
						a.Into(b, &g)
						a, err = c.Post(context.Background(), leader, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Token))
						if err != nil || a.Status != http.StatusOK {
							b.Errorf("release: %v %s", err, a.Body)
							return
						}
					}
				})
			}
			running.Wait()
			b.StopTimer()
			b.ReportMetric(float64(lastIndex(b, c, leader)-before)/float64(b.N), "entries/op")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acquire+release/s")
		})
	}
}

func lastIndex(b *testing.B, c *pawltest.Cluster, node int) uint64 {
	b.Helper()
	var out transport.ClusterResponse
	c.MustGet(node, "/v1/cluster").Into(b, &out)
	return out.Index
}
