//go:build !linux

package process

import (
	"fmt"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// Options say what kind of cluster a run wants. There is none on this system.
type Options struct {
	Nodes, Clients int
	Pawl, Dir      string
	DiskSize       int64
}

// Isolated is false.
func Isolated() bool { return false }

// Isolate needs Linux.
func Isolate() (code int, isolated bool, err error) {
	return 0, false, fmt.Errorf("a cluster of processes needs Linux: %w", cluster.ErrUnsupported)
}

// New needs Linux.
func New(Options) (cluster.Apart, error) {
	return nil, fmt.Errorf("a cluster of processes needs Linux: %w", cluster.ErrUnsupported)
}

// ContainerOptions say what kind of cluster of containers a run wants. There is none on this system.
type ContainerOptions struct {
	Nodes, Clients  int
	Root, Dist, Dir string
}

// NewContainers needs Linux.
func NewContainers(ContainerOptions) (cluster.Apart, error) {
	return nil, fmt.Errorf("a cluster of containers with faults needs Linux: %w", cluster.ErrUnsupported)
}
