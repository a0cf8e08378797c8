//go:build unix

package replica

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock that bbolt takes; it ends with the file.
func tryLock(file *os.File) (free bool, err error) {
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// freeBytes is how much can still be written below dir.
func freeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return uint64(s.Bavail) * uint64(s.Bsize), nil //nolint:unconvert // the types differ between systems
}
