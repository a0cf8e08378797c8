//go:build linux

package guard

import (
	"os"

	"golang.org/x/sys/unix"
)

// firstFile is the first file beside the three standard ones.
const firstFile = 3

// inherited gives the number of the first of two files that this process was not started with, which are free for a guard's
// orders and reports, and copies of those before it (nil where there is none): a command expects what a shell or systemd has
// opened for it at the same number. What stands behind is handed down by itself.
func inherited() (free int, before []*os.File) {
	for number := firstFile; ; number++ {
		if !given(number) && !given(number+1) {
			return number, before
		}
		var file *os.File
		if given(number) {
			if copied, err := unix.FcntlInt(uintptr(number), unix.F_DUPFD_CLOEXEC, firstFile); err == nil {
				file = os.NewFile(uintptr(copied), "")
			}
		}
		before = append(before, file)
	}
}

// given says whether this process was started with the file: what it opens by itself is closed on exec.
func given(number int) bool {
	flags, err := unix.FcntlInt(uintptr(number), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}
