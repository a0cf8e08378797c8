package replica

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// chatterInterval is how often one message of Raft's may be repeated; chatterKinds how many are told apart.
const (
	chatterInterval = 10 * time.Second
	chatterKinds    = 256
)

// quiet is a logger for the library: warnings and errors only, each message at most once in ten seconds, with a count of
// what was left out (F07: a dead peer otherwise writes several lines a second).
type quiet struct {
	hclog.Logger
	seen *chatter
}

func newQuiet(logger hclog.Logger) *quiet {
	return &quiet{Logger: logger, seen: &chatter{last: map[string]*repeat{}}}
}

type chatter struct {
	mu   sync.Mutex
	last map[string]*repeat
}

type repeat struct {
	at   time.Time
	left int
}

// allow says whether to write this message now, and how many were left out since it was last written.
func (c *chatter) allow(message string) (left int, ok bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last[message]
	if last == nil {
		if len(c.last) >= chatterKinds {
			clear(c.last)
		}
		c.last[message] = &repeat{at: now}
		return 0, true
	}
	if now.Sub(last.at) < chatterInterval {
		last.left++
		return 0, false
	}
	left = last.left
	*last = repeat{at: now}
	return left, true
}

func (q *quiet) Log(level hclog.Level, message string, args ...any) {
	if level < hclog.Warn {
		return
	}
	left, ok := q.seen.allow(message)
	if !ok {
		return
	}
	if left > 0 {
		args = append(args[:len(args):len(args)], "left_out", left)
	}
	q.Logger.Log(level, message, args...)
}

func (q *quiet) Trace(string, ...any) {}
func (q *quiet) Debug(string, ...any) {}
func (q *quiet) Info(string, ...any)  {}

func (q *quiet) Warn(message string, args ...any)  { q.Log(hclog.Warn, message, args...) }
func (q *quiet) Error(message string, args ...any) { q.Log(hclog.Error, message, args...) }

func (q *quiet) With(args ...any) hclog.Logger { return &quiet{q.Logger.With(args...), q.seen} }
func (q *quiet) Named(name string) hclog.Logger {
	return &quiet{q.Logger.Named(name), q.seen}
}
func (q *quiet) ResetNamed(name string) hclog.Logger {
	return &quiet{q.Logger.ResetNamed(name), q.seen}
}

var _ hclog.Logger = (*quiet)(nil)
