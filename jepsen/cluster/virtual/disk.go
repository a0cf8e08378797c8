package virtual

import (
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// disk is a node's: it is put around the writes of its log.
type disk struct {
	mu      sync.Mutex
	random  *rand.Rand
	how     cluster.Disk
	delay   time.Duration
	changed chan struct{} // closed when how changes
	dead    chan struct{} // closed when the node has died: it waits for no disk
}

func newDisk(seed uint64) *disk {
	return &disk{random: rand.New(rand.NewPCG(seed, 5)), changed: make(chan struct{}), dead: make(chan struct{})}
}

func (d *disk) set(how cluster.Disk, delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.how, d.delay = how, delay
	close(d.changed)
	d.changed = make(chan struct{})
}

// born begins a life of the node and gives what is put around its writes.
func (d *disk) born() func(string, func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = make(chan struct{})
	dead := d.dead
	return func(_ string, write func() error) error { return d.write(dead, write) }
}

// die ends a life. What still waits for the disk gets an error.
func (d *disk) die() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.dead:
	default:
		close(d.dead)
	}
}

var errDied = errors.New("the node died meanwhile")

func (d *disk) write(dead <-chan struct{}, write func() error) error {
	for {
		d.mu.Lock()
		how, delay, changed, lands := d.how, d.delay, d.changed, d.random.IntN(2) == 0
		d.mu.Unlock()
		switch how {
		case cluster.DiskFine:
			return write()
		case cluster.DiskSlow:
			timer := time.NewTimer(delay)
			defer timer.Stop()
			select {
			case <-timer.C:
				return write()
			case <-dead:
				return errDied
			}
		case cluster.DiskFull:
			return syscall.ENOSPC
		case cluster.DiskFails:
			if lands { // what was reported as failed may be on the disk all the same
				_ = write()
			}
			return syscall.EIO
		case cluster.DiskHangs:
			select {
			case <-changed:
			case <-dead:
				return errDied
			}
		}
	}
}
