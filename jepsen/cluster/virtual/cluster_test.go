package virtual_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
)

// inBubble runs a test of a cluster of three nodes and two clients that is ready.
func inBubble(t *testing.T, test func(t testing.TB, c *virtual.Cluster)) {
	t.Helper()
	dir := t.TempDir()
	err := virtual.In(t)(func(t testing.TB) {
		c := virtual.New(t, virtual.Options{Nodes: 3, Clients: 2, Seed: 1, Dir: dir})
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		ready(t, c)
		test(t, c)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ready(t testing.TB, c *virtual.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// reaches says whether a client has an answer from a node within two seconds.
func reaches(c *virtual.Cluster, client, node int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	k := c.Client(client)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.Endpoints[node]+"/livez", nil)
	if err != nil {
		return false
	}
	response, err := k.HTTP.Do(r)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil
}

// want fails unless the faults that a test makes can be made.
func want(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestClientThatIsPausedStaysSo(t *testing.T) {
	inBubble(t, func(t testing.TB, c *virtual.Cluster) {
		want(t, c.PauseClient(0), c.Cut(3, 1))
		passed := make(chan time.Duration, 1)
		go func() {
			c.Client(0).Point(context.Background())
			passed <- c.Now()
		}()
		time.Sleep(time.Second)
		want(t, c.Heal())
		if reaches(c, 0, 0) || reaches(c, 0, 1) {
			t.Error("a paused client reaches a node after the network was healed")
		}
		if !reaches(c, 1, 0) {
			t.Error("the other client does not reach the node")
		}
		resumed := c.Now()
		want(t, c.ResumeClient(0))
		if at := <-passed; at < resumed {
			t.Errorf("it went on at %v, and was resumed at %v", at, resumed)
		}
		if !reaches(c, 0, 0) || !reaches(c, 0, 1) {
			t.Error("a client that was resumed does not reach a node")
		}
	})
}

func TestResumingKeepsOtherCuts(t *testing.T) {
	inBubble(t, func(t testing.TB, c *virtual.Cluster) {
		want(t, c.Cut(3, 1), c.PauseClient(0), c.ResumeClient(0))
		if reaches(c, 0, 1) {
			t.Error("the cut has ended with the pause")
		}
		if !reaches(c, 0, 0) {
			t.Error("another node is cut off too")
		}
	})
}

// A node whose disk fails, or has hung for long, ends itself, and starts again when the disk is well.
func TestDiskEndsNode(t *testing.T) {
	for _, how := range []cluster.Disk{cluster.DiskFails, cluster.DiskHangs, cluster.DiskFull} {
		inBubble(t, func(t testing.TB, c *virtual.Cluster) {
			leader := c.Leader()
			want(t, c.Disk(leader, how, 0))
			_ = reaches(c, 1, leader)
			_ = c.Transfer((leader + 1) % 3) // makes it write
			for end := c.Now() + 30*time.Second; c.Runs(leader); time.Sleep(100 * time.Millisecond) {
				if c.Now() > end {
					t.Fatalf("disk %d: the node still runs", how)
				}
			}
			want(t, c.Disk(leader, cluster.DiskFine, 0), c.Start(leader))
			ready(t, c)
		})
	}
}

func TestDigestsAgree(t *testing.T) {
	inBubble(t, func(t testing.TB, c *virtual.Cluster) {
		time.Sleep(time.Second)
		index, digest, err := c.Digest(context.Background(), 0)
		want(t, err)
		other, same, err := c.Digest(context.Background(), 1)
		want(t, err)
		if index == 0 || index != other || digest != same {
			t.Errorf("%d %s, %d %s", index, digest, other, same)
		}
		want(t, c.Kill(0))
		if _, _, err := c.Digest(context.Background(), 0); err == nil {
			t.Error("a node that does not run has a digest")
		}
		want(t, c.Wipe(0), c.Start(0))
		ready(t, c)
	})
}

// A goroutine that is left ends that run, with its stack, and no other.
func TestWhoIsLeftIsTold(t *testing.T) {
	forever := func(testing.TB) { go func() { select {} }() }
	for range 2 {
		var left *virtual.LeftError
		if err := virtual.In(t)(forever); !errors.As(err, &left) || len(left.Ours()) != 1 || !strings.Contains(left.Ours()[0], "TestWhoIsLeftIsTold") {
			t.Errorf("a run that leaves a goroutine: %v", err)
		}
	}
	if err := virtual.In(t)(func(testing.TB) {}); err != nil {
		t.Error(err)
	}
}
