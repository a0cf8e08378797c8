//go:build unguarded

package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/raft"
)

// off says that PAWL_UNGUARDED names the guard; several have commas between. It must not change while a node runs. Another
// name is a panic: such a run would show nothing.
func off(g guard) bool {
	names := strings.Split(os.Getenv("PAWL_UNGUARDED"), ",")
	for _, name := range names {
		if name != "" && !slices.Contains([]guard{guardD1, guardD2, guardD3, guardD4, guardD7, guardStop}, guard(name)) {
			panic("PAWL_UNGUARDED: there is no guard " + name + " that can be switched off")
		}
	}
	return slices.Contains(names, string(g))
}

// verifyLeader is what the library offers instead of a read round.
func (r *Replica) verifyLeader(ctx context.Context) error {
	err := r.await(ctx, r.raft.VerifyLeader())
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost):
		return ErrNotLeader
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
	return nil
}

// AppendEntriesPipeline has the pipeline end with the transport: one that is stuck (D3) would otherwise outlive the node, which no
// cluster in virtual time allows.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err == nil {
		go func() {
			<-t.stopped
			_ = p.Close()
		}()
	}
	return p, err
}
