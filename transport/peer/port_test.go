package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
)

// message is a Raft message as its network transport would send it.
func message(t *testing.T, kind byte, command any) []byte {
	t.Helper()
	var buffer bytes.Buffer
	buffer.WriteByte(kind)
	if err := codec.NewEncoder(&buffer, &codec.MsgpackHandle{}).Encode(command); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// endless is a reader of one byte for ever.
type endless byte

func (e endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e)
	}
	return len(b), nil
}

// Everything of raft-notes that ends or exhausts a bare Raft port, sent before the handshake: it is ended within 5 s,
// reaches nobody and costs next to nothing. Each also behind a first byte that looks like ours.
func TestHostileBytesBeforeTheHandshake(t *testing.T) {
	header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("evil"), Addr: []byte("evil:1")}
	appendEntries := func(entries ...*raft.Log) []byte {
		return message(t, 0, raft.AppendEntriesRequest{RPCHeader: header, Term: 99, Entries: entries,
			LeaderCommitIndex: uint64(len(entries))})
	}
	bytesOf := func(b []byte) func() io.Reader { return func() io.Reader { return bytes.NewReader(b) } }
	flood := func(start string, then byte, count int64) func() io.Reader {
		return func() io.Reader {
			return io.MultiReader(strings.NewReader(start), io.LimitReader(endless(then), count))
		}
	}
	hostile := map[string]func() io.Reader{
		"heartbeat of term 99": bytesOf(appendEntries()),
		"append and commit":    bytesOf(appendEntries(&raft.Log{Index: 1, Term: 99, Data: []byte("x")})),
		"entries: [nil]":       bytesOf(appendEntries(nil)),
		"bad configuration":    bytesOf(appendEntries(&raft.Log{Index: 1, Term: 99, Type: raft.LogConfiguration, Data: []byte{0xc1}})),
		"log type 77":          bytesOf(appendEntries(&raft.Log{Index: 1, Term: 99, Type: 77})),
		"TimeoutNow":           bytesOf(message(t, 3, raft.TimeoutNowRequest{RPCHeader: header})),
		"InstallSnapshot of 1 TiB, then silence": bytesOf(message(t, 2, raft.InstallSnapshotRequest{
			RPCHeader: header, Term: 99, Size: 1 << 40})),
		"64 MiB of msgpack nil":   flood("\x00\xdd\x04\x00\x00\x00", 0xc0, 64<<20),
		"64 MiB of zeros":         flood("", 0, 64<<20),
		"nothing":                 bytesOf(nil),
		"an HTTP request":         bytesOf([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
		"a TLS hello":             bytesOf([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")),
		"a hello of 64 KiB":       flood(helloMagic+"\x01\x01\xff\xff", 'a', 64<<10),
		"a hello that is cut off": bytesOf(goodHello().frame()[:60]),
	}
	for name, body := range hostile {
		for _, disguise := range []string{"", "\xf1"} {
			t.Run(name+disguise, func(t *testing.T) {
				t.Parallel()
				port := openPort(t, identity("n1", 1), testCluster)
				transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
					Stream: port.Raft(), MaxPool: 1, Timeout: time.Second, MaxRPCsInFlight: 1})
				defer transport.Close()
				raw, err := net.Dial("tcp", port.Advertise())
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				raw.SetWriteDeadline(time.Now().Add(timeLimit))
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					io.Copy(raw, io.MultiReader(strings.NewReader(disguise), body())) // the port closes in its midst
				}()
				mustEnd(t, raw, timeLimit)
				<-sent
				nothingAccepted(t, port)
				select {
				case rpc := <-transport.Consumer():
					t.Errorf("raft was given %T", rpc.Command)
				default:
				}
			})
		}
	}
}

// Connections that say nothing are bounded in number and in memory, end at the deadline, and keep no peer out
// meanwhile.
func TestIdleConnectionsAreBounded(t *testing.T) {
	const idle = 200
	port := openPort(t, identity("n1", 1), testCluster)
	peer := openPort(t, identity("n2", 2), testCluster)
	before := memory()
	var open []net.Conn
	for range idle {
		raw, err := net.Dial("tcp", port.Advertise())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		raw.Write([]byte{helloMagic[0]})
		open = append(open, raw)
	}
	c, err := peer.Raft().Dial(port.raftAddress(), timeLimit)
	if err != nil {
		t.Fatalf("a peer was kept out: %v", err)
	}
	defer c.Close()
	port.mu.Lock()
	pending := len(port.pending)
	port.mu.Unlock()
	if pending > maxHandshakes || maxHandshakes >= 64 {
		t.Errorf("%d connections in the handshake", pending)
	}
	if used := memory() - before; used > int64(pending+2)<<20/8 {
		t.Errorf("%d KiB for %d handshakes", used>>10, pending)
	} else {
		t.Logf("%d KiB for %d handshakes in the process of both ends", used>>10, pending)
	}
	for _, raw := range open {
		mustEnd(t, raw, timeLimit)
	}
}

func acceptedConns(p *Port) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.accepted {
			count++
		}
	}
	return count
}

func memory() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// A peer that opens too many connections loses its least recently heard one; strangers get only their share, and
// members still come in when it is used up.
func TestConnectionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNetwork()
		open := func(self Identity, cluster string) *Port {
			at := self.Name + ":7800"
			return openPort(t, self, cluster, func(c *Config) {
				c.Network, c.Listen, c.Advertise, c.MaxConns, c.MaxConnsPerPeer = network, at, at, 16, 4
			})
		}
		port := open(identity("n1", 1), testCluster)
		member := open(identity("n2", 2), testCluster)
		var streams []net.Conn
		for range 5 {
			c, err := member.Raft().Dial(port.raftAddress(), timeLimit)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, c)
			<-time.After(time.Second)
		}
		if _, err := streams[0].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the oldest connection of a peer with too many: %v", err)
		}
		if got := acceptedConns(port); got != 4 {
			t.Errorf("%d connections of one peer, want 4", got)
		}
		whoever := target{hostport: "n1:7800"}
		for i := range 16 / strangerShare {
			if _, err := open(identity(fmt.Sprintf("s%d", i), 3), "another").dial(t.Context(), kindHTTP, whoever); err != nil {
				t.Fatalf("stranger %d: %v", i, err)
			}
		}
		if _, err := open(identity("s", 3), "another").dial(t.Context(), kindHTTP, whoever); !errors.Is(err, ErrTooManyConnections) {
			t.Errorf("one stranger too many: %v", err)
		}
		for i := range 8 {
			if _, err := open(identity(fmt.Sprintf("m%d", i), 3), testCluster).dial(t.Context(), kindHTTP, whoever); err != nil {
				t.Errorf("member %d: %v", i, err)
			}
		}
		if _, err := open(identity("m", 3), testCluster).dial(t.Context(), kindHTTP, whoever); !errors.Is(err, ErrTooManyConnections) {
			t.Errorf("one member too many: %v", err)
		}
	})
}

// A snapshot that stops arriving gives Raft's main loop back within its limit; a connection that is merely idle stays.
func TestMessageMustProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNetwork()
		at := func(address string) func(*Config) {
			return func(c *Config) { c.Network, c.Listen, c.Advertise = network, address, address }
		}
		port := openPort(t, identity("n1", 1), testCluster, at("n1:7800"))
		dialler := openPort(t, identity("n2", 2), testCluster, at("n2:7800"))
		there, err := dialler.Raft().Dial(port.raftAddress(), timeLimit)
		if err != nil {
			t.Fatal(err)
		}
		here, err := port.Raft().Accept()
		if err != nil {
			t.Fatal(err)
		}
		const exchanges, silence = 3, time.Hour
		go func() {
			for range exchanges {
				<-time.After(silence)
				there.Write([]byte("question"))
				io.ReadFull(there, make([]byte, len("answer")))
			}
			<-time.After(silence)
			there.Write([]byte("half a mess"))
		}()
		buffer := make([]byte, 64)
		for range exchanges {
			if _, err := here.Read(buffer); err != nil {
				t.Fatalf("after an hour of silence: %v", err)
			}
			here.Write([]byte("answer"))
		}
		if _, err := here.Read(buffer); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = here.Read(buffer)
		if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() || time.Since(start) != messageProgress {
			t.Errorf("a message that stopped arriving ended after %v with %v", time.Since(start), err)
		}
	})
}

// Close ends everything, at once: synctest fails when a goroutine is left.
func TestCloseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNetwork()
		at := func(address string) func(*Config) {
			return func(c *Config) { c.Network, c.Listen, c.Advertise = network, address, address }
		}
		port := openPort(t, identity("n1", 1), testCluster, at("n1:7800"))
		dialler := openPort(t, identity("n2", 2), testCluster, at("n2:7800"))
		stream, err := dialler.Raft().Dial(port.raftAddress(), timeLimit)
		if err != nil {
			t.Fatal(err)
		}
		halfway, err := network.Dial(t.Context(), "n1:7800")
		if err != nil {
			t.Fatal(err)
		}
		halfway.Write([]byte(helloMagic))
		silent, _ := network.Listen("n9:7800")
		var ended atomic.Int32
		for _, wait := range []func(){
			func() { here, _ := port.Raft().Accept(); here.Read(make([]byte, 1)) },
			func() { port.HTTP().Accept() },
			func() { dialler.dial(t.Context(), kindHTTP, target{hostport: "n9:7800"}) },
			func() { stream.Read(make([]byte, 1)) },
		} {
			go func() { wait(); ended.Add(1) }()
		}
		if _, err := silent.Accept(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		port.Close()
		dialler.Close()
		synctest.Wait()
		if took := time.Since(start); took > 0 || ended.Load() != 4 {
			t.Errorf("%d of 4 waits ended, after %v", ended.Load(), took)
		}
		if _, err := dialler.Raft().Dial(port.raftAddress(), timeLimit); err == nil {
			t.Error("a closed port dialled")
		}
		port.Close()
	})
}

// Raft's own shutdown waits for RPCs that are under way; CloseStreams ends them and leaves HTTP alone.
func TestCloseStreamsEndsRaftOnly(t *testing.T) {
	port := openPort(t, identity("n1", 1), testCluster)
	dialler := openPort(t, identity("n2", 2), testCluster)
	stream, err := dialler.Raft().Dial(port.raftAddress(), timeLimit)
	if err != nil {
		t.Fatal(err)
	}
	web, err := dialler.dial(t.Context(), kindHTTP, target{hostport: port.Advertise()})
	if err != nil {
		t.Fatal(err)
	}
	port.Raft().Close()
	mustEnd(t, stream, timeLimit)
	if _, err := dialler.Raft().Dial(port.raftAddress(), timeLimit); !errors.Is(err, ErrClosing) {
		t.Errorf("raft after its layer was closed: %v", err)
	}
	here, err := port.HTTP().Accept()
	if err != nil {
		t.Fatal(err)
	}
	here.Write(binary.BigEndian.AppendUint32(nil, 7))
	if _, err := io.ReadFull(web, make([]byte, 4)); err != nil {
		t.Errorf("HTTP after raft was closed: %v", err)
	}
}
