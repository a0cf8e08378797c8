package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is set in the environment of the harness that Isolate has started.
const inside = "PAWL_JEPSEN_INSIDE"

// disks is where the nodes' disks are mounted. Nobody else has such a directory: it shows that all is furnished.
const disks = "/run/pawl-jepsen"

// ownProgram is the harness's program, also when its file has been replaced meanwhile.
const ownProgram = "/proc/self/exe"

// Isolated says whether this is the program that Isolate has started. There is no network in there, for downloads.
func Isolated() bool { return os.Getenv(inside) != "" }

// Isolate starts this program again, with the same arguments and in namespaces of its own (processes, mounts, network),
// waits until it has ended, and gives its exit code and false. In the program that was started it gives true: it is to go
// on. Call it first in main, or in TestMain. The error says why this machine cannot do it; nothing has happened then.
func Isolate() (code int, isolated bool, err error) {
	if Isolated() {
		return 0, true, furnish()
	}
	if err := missing(); err != nil {
		return 0, false, err
	}
	runtime.LockOSThread() // the child ends with the thread that started it
	child := exec.Command(ownProgram, os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), inside+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	if err := child.Start(); err != nil {
		return 0, false, fmt.Errorf("making namespaces: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = child.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err = child.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), false, nil
	}
	return 0, false, err
}

// missing says what is not there.
func missing() error {
	if os.Getuid() != 0 {
		return errors.New("a cluster of processes needs root, for network namespaces")
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("a cluster of processes needs the program %s: %w", tool, err)
		}
	}
	return nil
}

// furnish mounts what must be the new namespaces' own. It may be called again.
func furnish() error {
	if os.Getpid() != 1 {
		return errors.New(inside + " is set, but this is not the process that it was set for")
	}
	if _, err := os.Stat(disks); err == nil {
		return nil
	}
	for _, mount := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE}, // or all that follows would be seen outside
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0}, // names of namespaces, the lock of iptables
	} {
		if err := unix.Mount(mount.source, mount.target, mount.kind, mount.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", mount.target, err)
		}
	}
	for _, dir := range []string{namespaces, disks} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return run("ip", "link", "set", "lo", "up")
}
