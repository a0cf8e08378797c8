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
	crashAt string        // the kind of write before which the node dies, when crashIn of them have been let through
	crashIn int
	failOne string // the kind of write of which the next one fails
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
	return func(what string, write func() error) error {
		if d.crashes(what) {
			return errDied
		}
		if d.failsOnce(what) {
			return syscall.EIO
		}
		return d.write(dead, write)
	}
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

// crash has the node die before it makes a write of this kind, after so many others of it.
func (d *disk) crash(what string, after int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashAt, d.crashIn = what, after
}

// fail has the next write of this kind fail.
func (d *disk) fail(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failOne = what
}

func (d *disk) failsOnce(what string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failOne != what {
		return false
	}
	d.failOne = ""
	return true
}

// crashes says whether this is the write that the node is to die before. Nothing is written any more then.
func (d *disk) crashes(what string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashAt != what {
		return false
	}
	if d.crashIn--; d.crashIn >= 0 {
		return false
	}
	d.crashAt = ""
	close(d.dead)
	return true
}

var errDied = errors.New("the node died meanwhile")

func (d *disk) write(dead <-chan struct{}, write func() error) error {
	for {
		select {
		case <-dead:
			return errDied
		default:
		}
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
