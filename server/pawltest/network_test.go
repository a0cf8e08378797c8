package pawltest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const farTooLong = time.Minute // virtual

// connect gives both ends of a connection from one host to another.
func connect(t *testing.T, n *Network, from, to string) (dialled, accepted net.Conn) {
	t.Helper()
	listener, err := n.Host(to).Listen(to + ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err = n.Host(from).Dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}

// inBubble runs a test on a fresh network in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, n *Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, NewNetwork(1)) })
}

func mustRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

func mustWrite(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if count, err := c.Write([]byte(text)); err != nil || count != len(text) {
		t.Fatalf("wrote %d bytes of %q: %v", count, text, err)
	}
}

// What net.Conn demands, each inside virtual time and outside it.
func TestConnIsANetConn(t *testing.T) {
	tests := map[string]func(t *testing.T, a, b net.Conn){
		"both directions at once, in order, whole": func(t *testing.T, a, b net.Conn) {
			var group sync.WaitGroup
			for i, c := range []net.Conn{a, b} {
				sent := randomBytes(uint64(i), 3*window+7)
				other := []net.Conn{b, a}[i]
				group.Go(func() {
					for rest, size := sent, 1; len(rest) > 0; size *= 3 {
						size = min(size, len(rest))
						if _, err := c.Write(rest[:size]); err != nil {
							t.Error(err)
						}
						rest = rest[size:]
					}
				})
				group.Go(func() {
					got := make([]byte, len(sent))
					if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("bytes differ: %v", err)
					}
				})
			}
			group.Wait()
		},
		"a read deadline in the past": func(t *testing.T, a, b net.Conn) {
			mustWrite(t, b, "x")
			a.SetReadDeadline(time.Unix(1, 0))
			timedOut(t, read(a))
			a.SetReadDeadline(time.Time{})
			mustRead(t, a, "x")
		},
		"a read deadline that comes": func(t *testing.T, a, b net.Conn) {
			a.SetDeadline(time.Now().Add(20 * time.Millisecond))
			timedOut(t, read(a))
		},
		"a read deadline set by another goroutine": func(t *testing.T, a, b net.Conn) {
			time.AfterFunc(20*time.Millisecond, func() { a.SetReadDeadline(time.Unix(1, 0)) })
			timedOut(t, read(a))
		},
		"a write deadline, with the window full": func(t *testing.T, a, b net.Conn) {
			a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			count, err := a.Write(make([]byte, window+1))
			timedOut(t, err)
			if count != window {
				t.Errorf("%d bytes went out, want %d", count, window)
			}
		},
		"close of the other end, after what it sent": func(t *testing.T, a, b net.Conn) {
			mustWrite(t, b, "last words")
			b.Close()
			mustRead(t, a, "last words")
			for range 2 {
				if err := read(a); err != io.EOF {
					t.Errorf("after the end: %v", err)
				}
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("writing to a closed end: %v", err)
			}
		},
		"close of the own end": func(t *testing.T, a, b net.Conn) {
			time.AfterFunc(20*time.Millisecond, func() { a.Close() })
			if err := read(a); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a read during close: %v", err)
			}
			for act, err := range map[string]error{"read": read(a), "write": write(a), "set": a.SetDeadline(time.Now()), "close": a.Close()} {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s after close: %v", act, err)
				}
			}
		},
		"close of the other end ends a blocked write": func(t *testing.T, a, b net.Conn) {
			time.AfterFunc(20*time.Millisecond, func() { b.Close() })
			if _, err := a.Write(make([]byte, window+1)); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("blocked write: %v", err)
			}
		},
		"empty reads and writes": func(t *testing.T, a, b net.Conn) {
			if count, err := a.Read(nil); count != 0 || err != nil {
				t.Errorf("read: %d, %v", count, err)
			}
			if count, err := a.Write(nil); count != 0 || err != nil {
				t.Errorf("write: %d, %v", count, err)
			}
		},
		"the writer keeps its buffer": func(t *testing.T, a, b net.Conn) {
			buffer := []byte("before")
			a.Write(buffer)
			copy(buffer, "after!")
			mustRead(t, b, "before")
		},
		"addresses": func(t *testing.T, a, b net.Conn) {
			if a.LocalAddr().String() != b.RemoteAddr().String() || a.RemoteAddr().String() != b.LocalAddr().String() {
				t.Errorf("%v-%v and %v-%v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
			}
		},
	}
	for name, test := range tests {
		for _, side := range []string{"dialled", "accepted"} {
			run := func(t *testing.T, n *Network) {
				a, b := connect(t, n, "client", "n1")
				if side == "accepted" {
					a, b = b, a
				}
				test(t, a, b)
			}
			t.Run(name+"/"+side+"/virtual", func(t *testing.T) { inBubble(t, run) })
			t.Run(name+"/"+side+"/real", func(t *testing.T) { run(t, NewNetwork(1)) })
		}
	}
}

func read(c net.Conn) error  { _, err := c.Read(make([]byte, 1)); return err }
func write(c net.Conn) error { _, err := c.Write([]byte("x")); return err }

func timedOut(t *testing.T, err error) {
	t.Helper()
	if timeout, ok := errors.AsType[net.Error](err); !errors.Is(err, os.ErrDeadlineExceeded) || !ok || !timeout.Timeout() {
		t.Errorf("got %v, want a time-out", err)
	}
}

func randomBytes(seed uint64, count int) []byte {
	random := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, count)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func TestDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		a, b := connect(t, n, "n1", "n2")
		for _, delay := range []time.Duration{defaultDelay, 30 * time.Millisecond, time.Millisecond} {
			n.SetDelay("n1", "n2", delay)
			start := time.Now()
			mustWrite(t, a, "x")
			mustRead(t, b, "x")
			if took := time.Since(start); took < delay || took > delay+delay/jitterShare {
				t.Errorf("took %v over a delay of %v", took, delay)
			}
		}
		n.SetDelay("n1", "n2", time.Second)
		mustWrite(t, a, "slow ")
		n.SetDelay("n1", "n2", time.Millisecond)
		mustWrite(t, a, "but in order")
		mustRead(t, b, "slow but in order")

		n.SetDelay("n1", "n2", time.Second)
		mustWrite(t, a, "slow")
		n.SetDelay("n1", "n2", time.Millisecond)
		a.Close()
		<-time.After(10 * time.Millisecond)
		if err := write(b); err != nil {
			t.Errorf("the end overtook the bytes before it: %v", err)
		}
		mustRead(t, b, "slow")
	})
}

// What is sent over a cut link is held and arrives after the heal; what had arrived before can be read meanwhile.
func TestCutHoldsAndHealDelivers(t *testing.T) {
	for name, oneWay := range map[string]bool{"both ways": false, "one way": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *Network) {
				a, b := connect(t, n, "n1", "n2")
				mustWrite(t, a, "arrived ")
				<-time.After(time.Second)
				mustWrite(t, a, "on its way ")
				if oneWay {
					n.CutOneWay("n1", "n2")
				} else {
					n.Cut("n1", "n2")
				}
				mustWrite(t, a, "held")
				mustRead(t, b, "arrived ")
				b.SetReadDeadline(time.Now().Add(farTooLong))
				timedOut(t, read(b))
				b.SetReadDeadline(time.Time{})

				mustWrite(t, b, "back")
				a.SetReadDeadline(time.Now().Add(farTooLong))
				if oneWay {
					mustRead(t, a, "back")
				} else {
					timedOut(t, read(a))
				}
				a.SetReadDeadline(time.Time{})

				start := time.Now()
				time.AfterFunc(time.Second, func() { n.Heal("n1", "n2") })
				mustRead(t, b, "on its way held")
				if took := time.Since(start); took != time.Second+defaultDelay {
					t.Errorf("delivered %v after the heal", took-time.Second)
				}
				if !oneWay {
					mustRead(t, a, "back")
				}
			})
		})
	}
}

// The end of a connection is held by a cut like everything else.
func TestCutHoldsTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		a, b := connect(t, n, "n1", "n2")
		n.Cut("n1", "n2")
		a.Close()
		b.SetDeadline(time.Now().Add(farTooLong))
		timedOut(t, read(b))
		b.SetDeadline(time.Time{})
		if err := write(b); err != nil {
			t.Errorf("writing while the end is held: %v", err)
		}
		n.HealAll()
		if err := read(b); err != io.EOF {
			t.Errorf("after the heal: %v", err)
		}
	})
}

func TestDialOverACut(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		listener, err := n.Host("n2").Listen("n2:7800")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		from := n.Host("n1")
		n.CutOneWay("n2", "n1") // the answer would not come, so nobody may accept it either
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if c, err := from.Dial(ctx, "n2:7800"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("%v, %v after %v", c, err, time.Since(start))
		}
		if _, err := from.Dial(t.Context(), "n2:7800"); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("without a deadline: %v", err)
		}
		time.AfterFunc(time.Second, func() { n.Heal("n1", "n2") })
		c, err := from.Dial(t.Context(), "n2:7800")
		if err != nil {
			t.Fatalf("healed while dialling: %v", err)
		}
		defer c.Close()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		mustWrite(t, c, "x")
		mustRead(t, accepted, "x") // of this dial: none of the former ones was accepted
	})
}

func TestIsolate(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		reach := func(from, to string) bool {
			listener, err := n.Host(to).Listen(to + ":7800")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := n.Host(from).Dial(ctx, to+":7800")
			if err != nil {
				return false
			}
			c.Close()
			return true
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			n.Host(name)
		}
		n.Isolate("n1")
		steps := []struct {
			act     func()
			from    string
			to      string
			reaches bool
		}{
			{func() {}, "n1", "n2", false},
			{func() {}, "n3", "n1", false},
			{func() {}, "n2", "n3", true},
			{func() {}, "n1", "n1", true},
			{func() {}, "newcomer", "n1", false},
			{func() { n.Heal("n1", "n2") }, "n1", "n2", true},
			{func() {}, "n1", "n3", false},
			{func() { n.Heal("later", "n1") }, "later", "n1", true},
			{func() { n.Rejoin("n1") }, "n1", "n3", true},
			{func() { n.Isolate("n2") }, "n2", "n3", false},
			{n.HealAll, "n2", "n3", true},
		}
		for i, step := range steps {
			step.act()
			if got := reach(step.from, step.to); got != step.reaches {
				t.Errorf("step %d: %s reaches %s: %v", i, step.from, step.to, got)
			}
		}
	})
}

func TestCrash(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		before := n.Host("n1")
		listener, err := before.Listen("n1:7800")
		if err != nil {
			t.Fatal(err)
		}
		here, there := connect(t, n, "n1", "n2")
		waiting, err := n.Host("n2").Dial(t.Context(), "n1:7800") // nobody accepts it
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, here, "last words")
		n.Crash("n1")

		if err := read(here); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reading on the crashed host: %v", err)
		}
		mustRead(t, there, "last words")
		for _, c := range []net.Conn{there, waiting} {
			if err := read(c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading from the crashed host: %v", err)
			}
		}
		waiting.Close()
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept on the crashed host: %v", err)
		}
		if _, err := n.Host("n2").Dial(t.Context(), "n1:7800"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling the crashed host: %v", err)
		}
		if _, err := before.Dial(t.Context(), "n2:7800"); !errors.Is(err, errHostCrashed) {
			t.Errorf("dialling from what is left of the crashed host: %v", err)
		}
		if _, err := before.Listen("n1:7800"); !errors.Is(err, errHostCrashed) {
			t.Errorf("listening on what is left of the crashed host: %v", err)
		}
		again, err := n.Host("n1").Listen("n1:7800")
		if err != nil {
			t.Fatalf("listening after the restart: %v", err)
		}
		defer again.Close()
		c, err := n.Host("n2").Dial(t.Context(), "n1:7800")
		if err != nil {
			t.Fatalf("dialling after the restart: %v", err)
		}
		c.Close()
	})
}

func TestListenAndDialErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		n1 := n.Host("n1")
		listener, err := n1.Listen("n1:7800")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n1.Listen("n1:7800"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listening twice: %v", err)
		}
		if _, err := n1.Listen("n2:7800"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("listening at another's address: %v", err)
		}
		if _, err := n1.Dial(t.Context(), "n1:7801"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling where nobody listens: %v", err)
		}
		_, err = n1.Dial(t.Context(), "nosuchhost:7800")
		if dns, ok := errors.AsType[*net.DNSError](err); !ok || !dns.IsNotFound {
			t.Errorf("dialling an unknown name: %v", err)
		}
		if _, err := n1.Dial(t.Context(), "no port"); err == nil {
			t.Error("dialled an address without a port")
		}
		listener.Close()
		if again, err := n1.Listen("n1:7800"); err != nil {
			t.Errorf("listening again: %v", err)
		} else {
			again.Close()
		}
	})
}

// With a keep-alive both ends of a connection time out when their link has been cut for as long, and not sooner; one whose link
// was healed goes on.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1)
		n.SetKeepAlive(10 * time.Second)
		client, server := connect(t, n, "a", "b")
		n.Cut("a", "b")
		time.Sleep(9 * time.Second)
		n.Heal("a", "b")
		time.Sleep(time.Minute)
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		n.CutOneWay("b", "a")
		began := time.Now()
		for _, c := range []net.Conn{server, client} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(began) != 10*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
	})
}
