package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// cable is another host, as far as the network goes: a network namespace at the other end of a cable.
type cable struct {
	t           *testing.T
	name        string // of the namespace
	here        string // this end's address
	connections []net.Conn
}

// newCable makes one. Without the right to it the test is skipped, or fails where PAWL_CI says that nothing may be skipped.
func newCable(t *testing.T) *cable {
	t.Helper()
	var missing error
	if os.Getuid() != 0 {
		missing = errors.New("not root")
	}
	for _, tool := range []string{"ip", "iptables"} {
		_, err := exec.LookPath(tool)
		missing = errors.Join(missing, err)
	}
	if missing != nil {
		if os.Getenv("PAWL_CI") == "1" {
			t.Fatalf("needs network namespaces, and PAWL_CI=1 makes what is skipped a failure: %v", missing)
		}
		t.Skipf("needs network namespaces: %v", missing)
	}
	pid := os.Getpid()
	subnet := fmt.Sprintf("198.18.%d.", pid%256) // of the range for measurements between networks
	c := &cable{t: t, name: fmt.Sprintf("pawl-test-%d", pid), here: subnet + "1"}
	link, other := fmt.Sprintf("pwa%d", pid), fmt.Sprintf("pwb%d", pid)
	c.run("ip", "netns", "add", c.name)
	t.Cleanup(func() {
		for _, c := range c.connections {
			c.Close()
		}
		c.run("ip", "netns", "del", c.name) // and both ends of the cable with it
	})
	c.run("ip", "link", "add", link, "type", "veth", "peer", "name", other, "netns", c.name)
	c.run("ip", "addr", "add", subnet+"1/30", "dev", link)
	c.run("ip", "link", "set", link, "up")
	c.run("ip", "-n", c.name, "addr", "add", subnet+"2/30", "dev", other)
	c.run("ip", "-n", c.name, "link", "set", other, "up")
	return c
}

func (c *cable) run(command string, args ...string) {
	c.t.Helper()
	if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
		c.t.Fatalf("%s %s: %v: %s", command, strings.Join(args, " "), err, out)
	}
}

// silence drops every packet at the other end: nobody here learns that it has gone.
func (c *cable) silence() {
	c.t.Helper()
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		c.run("ip", "netns", "exec", c.name, "iptables", "-w", "-A", chain, "-j", "DROP")
	}
}

// atOtherEnd runs f in a thread that lives there. What it connects stays there.
func (c *cable) atOtherEnd(f func() error) {
	c.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		file, err := os.Open("/run/netns/" + c.name)
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		c.t.Fatal(err)
	}
}

// F10, on the real network: two thousand wait for a hundred locks through all nodes, half end with a reset, and then the others'
// packets are dropped. Within 30 s their connections, goroutines and places are gone, and who lives is granted at once.
func TestCallersBehindADeadNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s of real time")
	}
	const locks, each = 100, 20
	c := newCable(t)
	w := pawltest.New(t, pawltest.Options{TCP: true, Configure: func(_ int, config *server.Config) {
		_, port, _ := net.SplitHostPort(config.APIListen)
		config.APIListen = "0.0.0.0:" + port
	}})
	t.Cleanup(w.Close)
	w.WaitReady()
	session := w.MustPost(0, 201, "/v1/session", `{"owner":"holder","ttl_ms":600000}`).Field("session")
	for i := range locks {
		w.MustPost(0, 200, "/v1/acquire", fmt.Sprintf(`{"name":"lock%d","session":%q,"request":%d}`, i, session, i+1))
	}
	queued := func() (all []int) {
		for i := range w.Size() {
			all = append(all, w.Node(i).Queued())
		}
		return all
	}
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	c.atOtherEnd(func() error {
		for i := range locks * each {
			_, port, _ := strings.Cut(strings.TrimPrefix(w.URL(i%w.Size()), "http://"), ":")
			connection, err := net.DialTimeout("tcp", net.JoinHostPort(c.here, port), 5*time.Second)
			if err != nil {
				return err
			}
			c.connections = append(c.connections, connection)
			body := fmt.Sprintf(`{"name":"lock%d","owner":"gone","ttl_ms":60000,"wait_ms":300000}`, i%locks)
			if _, err = fmt.Fprintf(connection, "POST /v1/acquire HTTP/1.1\r\nHost: pawl\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
				return err
			}
		}
		return nil
	})
	if !eventually(30*time.Second, func() bool { return w.Node(0).Queued() == locks*each }) {
		t.Fatalf("%d are to wait, and there are %v", locks*each, queued())
	}
	duringFDs, during := descriptors(), runtime.NumGoroutine()
	began := time.Now()
	for i, connection := range c.connections {
		if i%2 == 0 {
			connection.(*net.TCPConn).SetLinger(0)
			connection.Close()
		}
	}
	if !eventually(5*time.Second, func() bool { return w.Node(0).Queued() == locks*each/2 }) {
		t.Errorf("after the resets %v wait", queued())
	}
	resets := time.Since(began)
	c.silence()
	silent := time.Now()
	for _, connection := range c.connections {
		connection.Close()
	}
	if !eventually(time.Until(began.Add(30*time.Second)), func() bool {
		for i := range w.Size() {
			if w.Node(i).Queued() > 0 || w.Node(i).Waiters() > 0 {
				return false
			}
		}
		return descriptors() <= fds+40 && runtime.NumGoroutine() <= goroutines+150 // connections that nodes and the test keep for a while
	}) {
		t.Errorf("after 30 s %v wait, with %d descriptors and %d goroutines", queued(), descriptors(), runtime.NumGoroutine())
	}
	t.Logf("%d descriptors and %d goroutines; %d and %d while %d wait; the reset ones were gone after %v; after %v of silence %d and %d",
		fds, goroutines, duringFDs, during, locks*each, resets.Round(time.Millisecond), time.Since(silent).Round(time.Millisecond), descriptors(), runtime.NumGoroutine())
	granted := make(chan error, locks)
	for i := range locks {
		go func() {
			a, err := w.Post(t.Context(), i%w.Size(), "/v1/acquire", fmt.Sprintf(`{"name":"lock%d","owner":"living","wait_ms":20000}`, i))
			if err == nil && a.Status != 200 {
				err = fmt.Errorf("%d %s", a.Status, a.Body)
			}
			granted <- err
		}()
	}
	if !eventually(5*time.Second, func() bool { return w.Node(0).Queued() == locks }) {
		t.Fatalf("%v wait", queued())
	}
	released := time.Now()
	w.MustPost(0, 200, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, session))
	for range locks {
		if err := <-granted; err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(released); took > 2*time.Second {
		t.Errorf("who lives was granted after %v", took)
	}
}
