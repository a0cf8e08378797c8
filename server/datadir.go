package server

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport/peer"
)

// dataVersion is the version of the data directory's layout.
const dataVersion = 1

// identityFile is what makes a directory that of one node of one cluster. It is there before anything else is.
type identityFile struct {
	Version     int       `json:"version"`
	Name        string    `json:"name"`
	Incarnation string    `json:"incarnation"`
	Cluster     string    `json:"cluster,omitempty"` // once it is known
	Joining     bool      `json:"joining,omitempty"` // on its way to its vote, in the place of a former incarnation
	Opened      bool      `json:"opened,omitempty"`  // the Raft store was made: from then on it must be there
	Created     time.Time `json:"created"`
}

// promiseFile is a durable promise: to form this cluster, of this list, and no other (design, Membership). At the node
// that forms the cluster it also records who has promised.
type promiseFile struct {
	Cluster  string            `json:"cluster"`
	Floor    uint64            `json:"floor"`
	Peers    []Peer            `json:"peers"`
	Promised map[string]string `json:"promised,omitempty"` // name → incarnation
}

// dataDir is the directory of one node.
type dataDir struct {
	path     string
	identity identityFile
	promise  *promiseFile // nil when nothing was promised
}

const (
	identityName = "node.json"
	promiseName  = "promise.json"
)

// openDataDir reads who the directory belongs to, or makes it that of a new node. Data of another node or of a newer
// version is refused and stays as it was (C11).
func openDataDir(path, name string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	d := &dataDir{path: path}
	found, err := d.read(identityName, &d.identity)
	switch {
	case err != nil:
		return nil, err
	case !found:
		if _, err := os.Stat(filepath.Join(path, "raft.db")); err == nil {
			return nil, fmt.Errorf("data directory %s has a raft.db but no %s: it is not (or no longer) the data of a node; remove this node from the cluster, empty the directory and add it again", path, identityName)
		}
		d.identity = identityFile{Version: dataVersion, Name: name, Incarnation: peer.NewIncarnation(), Created: time.Now().UTC()}
		if err := d.write(identityName, d.identity); err != nil {
			return nil, err
		}
	case d.identity.Version > dataVersion:
		return nil, fmt.Errorf("data directory %s: layout %d, this version knows %d: %w", path, d.identity.Version, dataVersion, fsm.ErrNewer)
	case d.identity.Name != name:
		return nil, fmt.Errorf("data directory %s belongs to node %q, this node is %q", path, d.identity.Name, name)
	}
	if err := d.self().Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(path, identityName), err)
	}
	var promise promiseFile
	if found, err = d.read(promiseName, &promise); err != nil {
		return nil, err
	}
	if found {
		d.promise = &promise
	}
	return d, nil
}

func (d *dataDir) self() peer.Identity {
	return peer.Identity{Name: d.identity.Name, Incarnation: d.identity.Incarnation}
}

// cluster is the cluster this node is of, or has promised to be of; "" when neither.
func (d *dataDir) cluster() string {
	if d.identity.Cluster == "" && d.promise != nil {
		return d.promise.Cluster
	}
	return d.identity.Cluster
}

// change writes the identity with something changed, and keeps it when that is durable.
func (d *dataDir) change(f func(*identityFile)) error {
	next := d.identity
	f(&next)
	if next == d.identity {
		return nil
	}
	if err := d.write(identityName, next); err != nil {
		return err
	}
	d.identity = next
	return nil
}

func (d *dataDir) setCluster(cluster string) error {
	return d.change(func(i *identityFile) { i.Cluster = cluster })
}

func (d *dataDir) setOpened() error { return d.change(func(i *identityFile) { i.Opened = true }) }

// startJoining makes an empty node a newcomer to a cluster. What it had begun to form itself is void.
func (d *dataDir) startJoining(cluster string) error {
	return d.change(func(i *identityFile) { i.Cluster, i.Joining = cluster, true })
}

func (d *dataDir) endJoining() error { return d.change(func(i *identityFile) { i.Joining = false }) }

func (d *dataDir) setPromise(p promiseFile) error {
	if err := d.write(promiseName, p); err != nil {
		return err
	}
	d.promise = &p
	return nil
}

// ForgetPromise frees a node that never had state from the promise to form a cluster, for when the node that was to form
// it was lost before it did. It is refused when the node has state or runs.
func ForgetPromise(path, name string) error {
	d, err := openDataDir(path, name)
	if err != nil {
		return err
	}
	switch {
	case d.promise == nil:
		return fmt.Errorf("data directory %s has made no promise", path)
	case d.identity.Cluster != "":
		return fmt.Errorf("data directory %s belongs to cluster %s already", path, d.identity.Cluster)
	}
	// The cluster is written down a moment after its first entry: what decides is the log itself.
	member, err := replica.HasState(path)
	if err != nil {
		return fmt.Errorf("forgetting the promise: %w", err)
	}
	if member {
		return fmt.Errorf("data directory %s belongs to cluster %s already", path, d.promise.Cluster)
	}
	if err := os.Remove(filepath.Join(path, promiseName)); err != nil {
		return fmt.Errorf("forgetting the promise: %w", err)
	}
	return syncDir(path)
}

func (d *dataDir) read(name string, into any) (found bool, err error) {
	path := filepath.Join(d.path, name)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the data directory: %w", err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, fmt.Errorf("%s is damaged (%w): remove this node from the cluster, empty its data directory and add it again", path, err)
	}
	return true, nil
}

// write replaces a file as a whole and durably: after a crash it is the old one or the new one.
func (d *dataDir) write(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	temporary := filepath.Join(d.path, name+".tmp")
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temporary, filepath.Join(d.path, name))
	}
	if err == nil {
		err = syncDir(d.path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// clusterID turns the cluster's name as it is on the wire into that of the log.
func clusterID(text string) (fsm.ID, error) {
	var id fsm.ID
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("cluster id %q is not 32 hex digits", text)
	}
	copy(id[:], b)
	return id, nil
}
