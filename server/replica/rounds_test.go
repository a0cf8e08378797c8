package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var errUnreachable = errors.New("unreachable")

// D2, without time: who counts and who does not.
func TestQuorumRoundCounts(t *testing.T) {
	voter := func(id string) Server { return Server{ID: id, Voter: true} }
	three := []Server{voter("a"), voter("b"), voter("c")}
	for _, c := range []struct {
		name    string
		servers []Server
		own     uint64
		answers map[string]uint64 // the others are unreachable
		want    error
	}{
		{"all agree", three, 5, map[string]uint64{"b": 5, "c": 5}, nil},
		{"one agrees", three, 5, map[string]uint64{"c": 5}, nil},
		{"nobody answers", three, 5, nil, ErrNoQuorum},
		{"one has gone on, nobody agrees", three, 5, map[string]uint64{"b": 6}, ErrNotLeader},
		{"an older term proves nothing", three, 5, map[string]uint64{"b": 4, "c": 4}, ErrNoQuorum},
		{"own term has gone on", three, 6, map[string]uint64{"b": 5, "c": 5}, ErrNotLeader},
		{"alone", three[:1], 5, nil, nil},
		{"non-voters do not count", append([]Server{{ID: "d"}, {ID: "e"}}, three...), 5, map[string]uint64{"d": 5, "e": 5}, ErrNoQuorum},
		{"a leader without a vote does not count itself", append([]Server{{ID: "a"}}, three[1:]...), 5, map[string]uint64{"b": 5}, ErrNoQuorum},
		{"five need three", append([]Server{voter("d"), voter("e")}, three...), 5, map[string]uint64{"b": 5}, ErrNoQuorum},
		{"no voters", nil, 5, nil, ErrNoQuorum},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := quorumRound(t.Context(), c.servers, "a", func() uint64 { return c.own }, 5, func(_ context.Context, s Server) (uint64, error) {
				if s.ID == "a" || (!s.Voter && s.ID != "a") {
					t.Errorf("%s was asked", s.ID)
				}
				if term, ok := c.answers[s.ID]; ok {
					return term, nil
				}
				return 0, errUnreachable
			})
			if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A peer that does not answer holds up neither a round that is decided nor, beyond the context, one that is not.
func TestQuorumRoundDoesNotWaitForTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := []Server{{ID: "a", Voter: true}, {ID: "b", Voter: true}, {ID: "c", Voter: true}}
		began := time.Now()
		ask := func(ctx context.Context, s Server) (uint64, error) {
			if s.ID == "b" {
				return 5, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}
		own := func() uint64 { return 5 }
		if err := quorumRound(t.Context(), servers, "a", own, 5, ask); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := quorumRound(ctx, servers, "c", own, 6, ask); !errors.Is(err, ErrNotLeader) {
			t.Errorf("own term differs: %v", err)
		}
		servers[1].Voter = false
		if err := quorumRound(ctx, servers, "a", own, 5, ask); !errors.Is(err, ErrNoQuorum) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// D2, the schedule of the stale reads: a leader is cut off with its followers' last answers in its hands, another leads
// and commits, and the old one, which still believes that it leads, is asked for a read. Whatever was answered before the
// round began must not count.
func TestDeposedLeaderCannotReadStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		old := c.form()
		term := old.Term()
		replicas := map[string]*Replica{} // questions may outlive their round and the members
		for _, m := range c.members {
			replicas[m.config.ID] = m.Replica
		}
		ask := func(from *member) Ask {
			return func(_ context.Context, s Server) (uint64, error) {
				if !c.network.reaches(from.config.Address, s.Address) {
					return 0, errUnreachable
				}
				return replicas[s.ID].Term(), nil
			}
		}
		applied := c.submit(old, "before")
		if commit, err := old.ReadRound(t.Context(), term, ask(old)); err != nil || commit < applied.Index {
			t.Fatalf("a leader's round: %d, %v", commit, err)
		}
		if _, err := c.others(old)[0].ReadRound(t.Context(), term, ask(old)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a follower's round: %v", err)
		}
		if _, err := old.ReadRound(t.Context(), term-1, ask(old)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a round for another term: %v", err)
		}
		c.network.isolate(old.config.Address, true)
		if _, err := old.ReadRound(t.Context(), term, ask(old)); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("cut off at once: %v", err)
		}
		servers := old.Servers()
		fresh := c.leader()
		c.submit(fresh, "after")
		// As it was suspended: its own term is still the old one, its peers have gone on.
		c.network.isolate(old.config.Address, false)
		err := quorumRound(t.Context(), servers, old.id, func() uint64 { return term }, term, ask(old))
		if err == nil {
			t.Error("a deposed leader proves that it leads")
		}
	})
}

// One round serves all who arrived before it starts, and nobody who arrived after.
func TestRoundsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		s := &Rounds{ctx: t.Context(), limit: time.Second, round: func(ctx context.Context) (uint64, error) {
			started++
			mine := started
			<-time.After(100 * time.Millisecond)
			if mine == 3 {
				return 0, ErrNoQuorum
			}
			return uint64(mine), nil
		}}
		results := make(chan string, 100)
		join := func() {
			go func() {
				commit, err := s.Join(t.Context())
				results <- fmt.Sprint(commit, errors.Is(err, ErrNoQuorum))
			}()
			synctest.Wait()
		}
		join() // round 1
		for range 20 {
			join() // round 2, which starts when round 1 is over
		}
		count := map[string]int{}
		for range 21 {
			count[<-results]++
		}
		if started != 2 || count["1 false"] != 1 || count["2 false"] != 20 {
			t.Errorf("%d rounds, results %v", started, count)
		}
		join()
		if got := <-results; got != "0 true" {
			t.Errorf("the failed round gave %s", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Join(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a reader that has gone: %v", err)
		}
		<-time.After(time.Second)
	})
}
