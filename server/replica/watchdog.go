package replica

import (
	"fmt"
	"sync"
	"time"
)

const (
	watchdogTick = 100 * time.Millisecond
	// watchdogTicks is how many ticks a write may take: 4 s, far above any healthy disk, far below a session.
	watchdogTicks = 40
)

// watchdog makes the stores fail-stop (R16, C01, C02): heartbeats of a leader go on while its disk hangs, so nobody else
// would be elected; and a write that was reported as failed may land all the same. Time is counted in ticks that the
// watchdog itself saw pass, so a process that was suspended does not take its own pause for a slow disk.
type watchdog struct {
	fatal func(reason string)
	meter Meter
	disk  func(what string, write func() error) error // nil: the write itself
	once  sync.Once

	mu     sync.Mutex
	writes map[*write]struct{}

	// released is closed when nothing that this node says can reach anybody any more.
	released    chan struct{}
	releaseOnce sync.Once
	stopped     chan struct{}
	done        chan struct{}
}

type write struct {
	what  string
	ticks int
}

// newWatchdog starts the goroutine that counts; stop ends it.
func newWatchdog(fatal func(reason string)) *watchdog {
	w := &watchdog{
		fatal:    fatal,
		writes:   map[*write]struct{}{},
		released: make(chan struct{}),
		stopped:  make(chan struct{}),
		done:     make(chan struct{}),
	}
	go w.run()
	return w
}

func (w *watchdog) run() {
	defer close(w.done)
	ticker := time.NewTicker(watchdogTick)
	defer ticker.Stop()
	for {
		select {
		case <-w.stopped:
			return
		case <-ticker.C: // holds one tick at most: those of a pause are lost, as they must be
			if what, late := w.tick(); late {
				w.fail(fmt.Sprintf("%s has hung for %v: the disk does not answer", what, watchdogTicks*watchdogTick))
			}
		}
	}
}

func (w *watchdog) tick() (what string, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for running := range w.writes {
		running.ticks++
		if running.ticks >= watchdogTicks {
			what, late = running.what, true
		}
	}
	return what, late
}

// guard runs one write. A failure is reported once and then never returned while this node can still be heard: it blocks
// until release. (In a process Fatal does not return.)
func (w *watchdog) guard(what string, do func() error) error {
	running := &write{what: what}
	w.mu.Lock()
	w.writes[running] = struct{}{}
	w.mu.Unlock()
	began := time.Now()
	var err error
	if w.disk != nil {
		err = w.disk(what, do)
	} else {
		err = do()
	}
	w.meter.wrote(what, time.Since(began))
	w.mu.Lock()
	delete(w.writes, running)
	w.mu.Unlock()
	if err != nil && !off(guardStop) {
		w.fail(fmt.Sprintf("%s failed: %v", what, err))
		<-w.released
	}
	return err
}

func (w *watchdog) fail(reason string) { w.once.Do(func() { w.fatal(reason) }) }

// release lets failed writes return: the transport is closed, nobody hears this node.
func (w *watchdog) release() { w.releaseOnce.Do(func() { close(w.released) }) }

// stop ends the counting; call it once.
func (w *watchdog) stop() {
	w.release()
	close(w.stopped)
	<-w.done
}
