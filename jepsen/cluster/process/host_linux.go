package process

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// namespaces is where ip keeps them by name.
const namespaces = "/run/netns"

// host is a network namespace with one address.
type host struct {
	name    string
	address string

	mu   sync.RWMutex // a client's dial may outlive the client
	file *os.File     // of the namespace; nil when there is none
}

// run runs a program to its end. The error has what it said.
func run(program string, arguments ...string) error {
	return finish(exec.Command(program, arguments...), (*exec.Cmd).Start)
}

// finish starts a command and waits for its end.
func finish(command *exec.Cmd, start func(*exec.Cmd) error) error {
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := start(command)
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// batch has ip do several things at once, in a namespace if it is not "".
func batch(namespace string, lines ...string) error {
	arguments := []string{"-batch", "-"}
	if namespace != "" {
		arguments = append([]string{"-n", namespace}, arguments...)
	}
	command := exec.Command("ip", arguments...)
	command.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	return finish(command, (*exec.Cmd).Start)
}

// plug makes a host and connects it to a bridge.
func plug(bridge, name, address string) (*host, error) {
	if err := run("ip", "netns", "add", name); err != nil {
		return nil, err
	}
	h := &host{name: name, address: address}
	err := batch("", "link add v"+name+" type veth peer name eth0 netns "+name, "link set v"+name+" master "+bridge+" up")
	if err == nil {
		err = batch(name, "link set lo up", "addr add "+address+"/24 dev eth0", "link set eth0 up")
	}
	if err == nil {
		h.file, err = os.Open(filepath.Join(namespaces, name))
	}
	if err != nil {
		h.unplug()
		return nil, err
	}
	return h, nil
}

func (h *host) unplug() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.file != nil {
		_ = h.file.Close()
		h.file = nil
	}
	_ = run("ip", "netns", "del", h.name) // and the cable with it; at the latest the end of the harness ends it
}

// inside runs f in a thread that is at the host. What it opens or starts stays there.
func (h *host) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := h.enter()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// enter has this thread be at the host.
func (h *host) enter() error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.file == nil {
		return fmt.Errorf("there is no host %s any more", h.name)
	}
	if err := unix.Setns(int(h.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering host %s: %w", h.name, err)
	}
	return nil
}

// start starts a program there.
func (h *host) start(command *exec.Cmd) error { return h.inside(command.Start) }

// run runs a program there, to its end.
func (h *host) run(program string, arguments ...string) error {
	return finish(exec.Command(program, arguments...), h.start)
}

// dial connects from there. The address must be a literal one.
func (h *host) dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	err = h.inside(func() (err error) {
		connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}
