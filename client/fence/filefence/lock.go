//go:build unix

package filefence

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How often a lock that others have is asked for: at first, and at most.
const (
	firstPause   = time.Millisecond
	longestPause = 20 * time.Millisecond
)

// lock takes the lock file, which the kernel frees when its holder dies. It asks again and again
// instead of blocking in the kernel, where a context's end would not be noticed. The file stays:
// removing it would let two have "the" lock.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
		if ctx.Err() != nil { // both were ready
			return nil, context.Cause(ctx)
		}
		// Opened anew each time: somebody may have removed the file all the same, and then its lock
		// is nobody's.
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && same(file, path) {
			return func() { _ = file.Close() }, nil // frees it: nobody else has this open file
		}
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		timer.Reset(pause)
	}
}

func same(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(mine, named)
}
