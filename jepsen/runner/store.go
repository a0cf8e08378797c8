package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/pawl-lock/pawl/examples/local"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// The kinds of Store.
const (
	memoryStore   = "memory"
	boltStore     = "bolt"
	postgresStore = "postgres"
)

// DefaultStore is what the clients of a kind of cluster write to unless somebody says otherwise: a real database where there
// are real processes and its programs are on this machine, a file otherwise.
func DefaultStore(cluster string) string {
	if cluster != "virtual" && local.HasPostgres() {
		return postgresStore
	}
	return boltStore
}

func openStore(spec Spec, dir string) (workload.Store, error) {
	if spec.Store == boltStore {
		return workload.NewBolt(filepath.Join(dir, "register.db"), false)
	}
	return workload.NewMemory(), nil
}

// startPostgres bounds how long a PostgreSQL may take to be made and to answer.
const startPostgres = time.Minute

// shareStore opens the Store of a run with clients in processes of their own. address is what openShared takes there; close
// ends everything, once the clients have ended.
func shareStore(ctx context.Context, spec Spec, w workload.Workload, dir string) (store workload.Store, address string, close func() error, err error) {
	if spec.Store == postgresStore && workload.Writes(w) {
		ctx, cancel := context.WithTimeout(ctx, startPostgres)
		defer cancel()
		server, err := local.StartPostgres(ctx, workload.PostgresSettings(spec.Clients+2)...)
		if err != nil {
			return nil, "", nil, fmt.Errorf("store postgres (memory and bolt need no other program): %w", err)
		}
		if err = workload.CreatePostgres(ctx, server.Address); err == nil {
			store, err = workload.NewPostgres(server.Address)
		}
		if err != nil {
			server.Stop()
			return nil, "", nil, err
		}
		return store, server.Address, func() error {
			defer server.Stop()
			return store.Close()
		}, nil
	}
	if store, err = openStore(spec, dir); err != nil {
		return nil, "", nil, err
	}
	socket := filepath.Join(dir, "store")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, "", nil, errors.Join(err, store.Close())
	}
	served := make(chan error, 1)
	go func() { served <- workload.Serve(listener, store) }()
	return store, socket, func() error {
		_ = listener.Close()
		<-served
		return store.Close()
	}, nil
}

// openShared opens the Store in a client's process. What a client of PostgreSQL does is in its own process: stopped in the
// middle of a transaction, it is stopped in the middle of a transaction.
func openShared(spec Spec, w workload.Workload, address string) (workload.Store, error) {
	if spec.Store == postgresStore && workload.Writes(w) {
		return workload.NewPostgres(address)
	}
	return workload.NewRemote(address), nil
}
