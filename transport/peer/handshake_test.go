package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Who may come in, by kind, clusters and the incarnation that was wanted.
func TestWhoMayComeIn(t *testing.T) {
	us, them := identity("n1", 1), identity("n2", 2)
	other := "another-cluster"
	tests := []struct {
		name         string
		kind         kind
		ours, theirs string // cluster ids
		from         Identity
		wanted       string
		want         error
	}{
		{"raft, all right", kindRaft, testCluster, testCluster, them, us.Incarnation, nil},
		{"raft, other cluster", kindRaft, testCluster, other, them, us.Incarnation, ErrWrongCluster},
		{"raft, dialler knows no cluster", kindRaft, testCluster, "", them, us.Incarnation, ErrNoCluster},
		{"raft, we know no cluster", kindRaft, "", testCluster, them, us.Incarnation, ErrNoCluster},
		{"raft, nobody knows a cluster", kindRaft, "", "", them, us.Incarnation, ErrNoCluster},
		{"raft, other incarnation", kindRaft, testCluster, testCluster, them, them.Incarnation, ErrWrongIncarnation},
		{"raft, no incarnation", kindRaft, testCluster, testCluster, them, "", ErrWrongIncarnation},
		{"raft, our own identity", kindRaft, testCluster, testCluster, us, us.Incarnation, ErrSelf},
		{"http, all right", kindHTTP, testCluster, testCluster, them, us.Incarnation, nil},
		{"http, whoever answers", kindHTTP, testCluster, testCluster, them, "", nil},
		{"http, whoever answers, other cluster", kindHTTP, testCluster, other, them, "", nil},
		{"http, other cluster", kindHTTP, testCluster, other, them, us.Incarnation, ErrWrongCluster},
		{"http, dialler knows no cluster", kindHTTP, testCluster, "", them, us.Incarnation, nil},
		{"http, we know no cluster", kindHTTP, "", testCluster, them, us.Incarnation, nil},
		{"http, other incarnation", kindHTTP, "", "", them, them.Incarnation, ErrWrongIncarnation},
		{"http, to itself", kindHTTP, testCluster, testCluster, us, us.Incarnation, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			port := openPort(t, us, test.ours)
			raw, err := net.Dial("tcp", port.Advertise())
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			// By hand, since our own dialler would not even try some of these.
			h := hello{kind: test.kind, cluster: test.theirs, from: test.from, wanted: test.wanted}
			if _, err := raw.Write(h.frame()); err != nil {
				t.Fatal(err)
			}
			code := refusedWith(t, raw)
			if code == accepted {
				if test.want != nil {
					t.Errorf("was let in, want %v", test.want)
				}
				return
			}
			if !errors.Is(code.err(), test.want) {
				t.Errorf("refused with %v, want %v", code.err(), test.want)
			}
			mustEnd(t, raw, timeLimit)
			nothingAccepted(t, port)
		})
	}
}

// The dialler gets the listener's reason as a typed error, and who answered.
func TestDialTellsWhyItWasRefused(t *testing.T) {
	us := identity("n1", 1)
	port := openPort(t, us, testCluster)
	dialler := openPort(t, identity("n2", 2), "another-cluster")
	_, err := dialler.Raft().Dial(port.raftAddress(), timeLimit)
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || !errors.Is(err, ErrWrongCluster) || refused.Peer != us || refused.Cluster != testCluster {
		t.Errorf("got %v", err)
	}
	if _, ok := errors.AsType[*DialError](err); !ok {
		t.Errorf("%v is no DialError, so a forwarder cannot tell that nothing was sent", err)
	}

	unformed := openPort(t, identity("n3", 3), "")
	if _, err := unformed.Raft().Dial(port.raftAddress(), timeLimit); !errors.Is(err, ErrNoCluster) {
		t.Errorf("a node without cluster dialled raft: %v", err)
	}
}

// A node that was wiped and came back at its old address has another incarnation: nobody who means the former one
// reaches it, and Raft gets no byte (R-membership).
func TestRestartWithAnotherIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNetwork()
		at := func(address string) func(*Config) {
			return func(c *Config) { c.Network, c.Listen, c.Advertise = network, address, address }
		}
		dialler := openPort(t, identity("n2", 2), testCluster, at("n2:7800"))
		first := openPort(t, identity("n1", 1), testCluster, at("n1:7800"))
		former := first.raftAddress()
		c, err := dialler.Raft().Dial(former, timeLimit)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		first.Close()

		second := openPort(t, identity("n1", 9), testCluster, at("n1:7800"))
		if _, err := dialler.Raft().Dial(former, timeLimit); !errors.Is(err, ErrWrongIncarnation) {
			t.Errorf("dialling the former incarnation: %v", err)
		}
		if _, err := dialler.HTTPClient("n1:7800", first.Self().Incarnation).Get("http://n1/"); !errors.Is(err, ErrWrongIncarnation) {
			t.Errorf("HTTP to the former incarnation: %v", err)
		}
		nothingAccepted(t, second)
	})
}

// The dialler judges the answer by itself: a listener that says yes without being the wanted one gets no byte.
func TestDialDoesNotTrustAYes(t *testing.T) {
	self, wanted := identity("n2", 2), identity("n1", 1)
	good := func(h hello) answer { return answer{nonce: h.nonce, cluster: testCluster, from: wanted} }
	tests := []struct {
		name   string
		answer func(hello) []byte
		want   error
	}{
		{"other cluster", func(h hello) []byte { a := good(h); a.cluster = "x"; return a.frame() }, ErrWrongCluster},
		{"no cluster", func(h hello) []byte { a := good(h); a.cluster = ""; return a.frame() }, ErrNoCluster},
		{"other incarnation", func(h hello) []byte { a := good(h); a.from = identity("n1", 7); return a.frame() }, ErrWrongIncarnation},
		{"other nonce", func(h hello) []byte { a := good(h); a.nonce[0]++; return a.frame() }, ErrMalformed},
		{"other version", func(h hello) []byte { b := good(h).frame(); b[5]++; return b }, ErrWrongVersion},
		{"an echo", hello.frame, ErrNotPawl},
		{"an HTTP server", func(hello) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, ErrNotPawl},
		{"end", func(hello) []byte { return nil }, ErrNotPawl},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := newPipeNetwork()
				listener, _ := network.Listen("n1:7800")
				go func() {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					frame, _ := readFrame(c, helloMagic)
					h, _ := parseHello(frame)
					c.Write(test.answer(h))
				}()
				dialler := openPort(t, self, testCluster, func(c *Config) { c.Network, c.Listen, c.Advertise = network, "n2:7800", "n2:7800" })
				c, err := dialler.dial(t.Context(), kindRaft, target{"n1:7800", wanted.Incarnation})
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, %v; want %v", c, err, test.want)
				}
			})
		})
	}
}

// A byte now and then does not extend the deadline, and neither side waits longer than it.
func TestHandshakeEndsAtItsDeadline(t *testing.T) {
	open := func(t *testing.T, network *pipeNetwork) *Port {
		return openPort(t, identity("n1", 1), testCluster, func(c *Config) {
			c.Network, c.Listen, c.Advertise = network, "n1:7800", "n1:7800"
		})
	}
	t.Run("one byte every 100 ms", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := newPipeNetwork()
			port := open(t, network)
			raw, err := network.Dial(t.Context(), "n1:7800")
			if err != nil {
				t.Fatal(err)
			}
			start, written := time.Now(), 0
			for _, b := range goodHello().frame() {
				if _, err := raw.Write([]byte{b}); err != nil {
					break
				}
				written++
				<-time.After(100 * time.Millisecond)
			}
			if took := time.Since(start); took < defaultHandshakeTimeout || took > defaultHandshakeTimeout+200*time.Millisecond {
				t.Errorf("ended after %v and %d bytes", took, written)
			}
			nothingAccepted(t, port)
		})
	})
	t.Run("a first byte of something else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := newPipeNetwork()
			open(t, network)
			raw, err := network.Dial(t.Context(), "n1:7800")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			raw.Write([]byte("G"))
			mustEnd(t, raw, timeLimit)
			if took := time.Since(start); took > 0 {
				t.Errorf("held its place for %v", took)
			}
		})
	})
	t.Run("a dialler to one that never answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := newPipeNetwork()
			silent, _ := network.Listen("n9:7800")
			go func() {
				c, err := silent.Accept()
				if err == nil {
					io.Copy(io.Discard, c)
				}
			}()
			port := open(t, network)
			start := time.Now()
			_, err := port.dial(t.Context(), kindHTTP, target{hostport: "n9:7800"})
			if took := time.Since(start); err == nil || took != defaultHandshakeTimeout {
				t.Errorf("ended after %v with %v", took, err)
			}
		})
	})
	t.Run("a dialler whose context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := newPipeNetwork()
			silent, _ := network.Listen("n9:7800")
			go func() {
				c, err := silent.Accept()
				if err == nil {
					io.Copy(io.Discard, c)
				}
			}()
			port := open(t, network)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(300*time.Millisecond, cancel)
			start := time.Now()
			_, err := port.dial(ctx, kindHTTP, target{hostport: "n9:7800"})
			if took := time.Since(start); err == nil || took != 300*time.Millisecond {
				t.Errorf("ended after %v with %v", took, err)
			}
		})
	})
}

// Refusals are logged, but not once per connection (F07).
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		network := newPipeNetwork()
		openPort(t, identity("n1", 1), testCluster, func(c *Config) {
			c.Network, c.Listen, c.Advertise = network, "n1:7800", "n1:7800"
			c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
		})
		dialler := openPort(t, identity("n2", 2), "another", func(c *Config) { c.Network, c.Listen, c.Advertise = network, "n2:7800", "n2:7800" })
		start := time.Now()
		for time.Since(start) < 20*time.Second {
			dialler.dial(t.Context(), kindRaft, target{"n1:7800", identity("n1", 1).Incarnation})
			<-time.After(10 * time.Millisecond)
		}
		synctest.Wait()
		if lines := strings.Count(log.String(), "\n"); lines < 2 || lines > 5 {
			t.Errorf("%d lines for 2,000 refusals:\n%s", lines, log.String())
		}
	})
}
