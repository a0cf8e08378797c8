package virtual

import (
	"bytes"
	"sync"
)

const maxLog = 1 << 20 // bytes of a node's log that are kept

// log keeps the beginning and the end of what a node logs.
type log struct {
	mu    sync.Mutex
	first bytes.Buffer
	last  []byte
	left  int // bytes that were left out
}

// Write implements io.Writer.
func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first.Len()+len(b) <= maxLog/2 && len(l.last) == 0 {
		return l.first.Write(b)
	}
	l.last = append(l.last, b...)
	if over := len(l.last) - maxLog/2; over > maxLog/8 {
		l.last = append([]byte(nil), l.last[over:]...)
		l.left += over
	}
	return len(b), nil
}

// String gives what was kept.
func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left > 0 {
		return l.first.String() + "\n… some lines are left out …\n" + string(l.last)
	}
	return l.first.String() + string(l.last)
}
