package replica

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// peer is a transport with its screen, and another node's bare transport that sends to it.
type peer struct {
	transport *transport
	sender    *raft.NetworkTransport
	address   raft.ServerAddress
	header    raft.RPCHeader
}

func newPeer(t *testing.T, adjust func(s *screen)) *peer {
	n := newNetwork()
	p := &peer{address: "n0:1/x", header: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1.x"), Addr: []byte("n1:1/x")}}
	p.transport = newTransport(n.listen("n0:1/x"), hclog.NewNullLogger())
	s := &screen{
		self:       "n0.x",
		members:    func() []Server { return []Server{{ID: "n0.x", Voter: true}, {ID: "n1.x", Voter: true}} },
		free:       func() (uint64, error) { return 1 << 30, nil },
		has:        func(index, term uint64) bool { return false },
		term:       func() uint64 { return 1 },
		installing: new(atomic.Uint64),
	}
	if adjust != nil {
		adjust(s)
	}
	p.transport.start(s)
	p.sender = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: n.listen("n1:1/x"), MaxPool: 3, Timeout: time.Minute, MaxRPCsInFlight: 1, Logger: hclog.NewNullLogger(),
	})
	return p
}

func (p *peer) close() {
	_ = p.transport.Close()
	_ = p.sender.Close()
	p.sender.CloseStreams()
}

// hostile is every message of raft-notes §5 that brings a bare node down, and some more. Without the screen this test
// ends with the panic of a node's main loop (missing entry, unknown kind, bad configuration) or with a changed term.
func TestHostileMessagesAreRefused(t *testing.T) {
	configuration := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "n1.x", Address: "n1:1/x"}}})
	entry := func(change func(l *raft.Log)) []*raft.Log {
		l := &raft.Log{Index: 1, Term: 1, Type: raft.LogCommand}
		change(l)
		return []*raft.Log{l}
	}
	for _, c := range []struct {
		name string
		send func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error
	}{
		{"missing entry", appends(func(r *raft.AppendEntriesRequest) { r.Entries = []*raft.Log{nil} })},
		{"bad configuration", appends(func(r *raft.AppendEntriesRequest) {
			r.Entries = entry(func(l *raft.Log) { l.Type, l.Data = raft.LogConfiguration, []byte{0xc1, 1, 2} })
		})},
		{"empty configuration", appends(func(r *raft.AppendEntriesRequest) {
			r.Entries = entry(func(l *raft.Log) {
				l.Type, l.Data = raft.LogConfiguration, raft.EncodeConfiguration(raft.Configuration{})
			})
		})},
		{"unknown kind", appends(func(r *raft.AppendEntriesRequest) { r.Entries = entry(func(l *raft.Log) { l.Type = 77 }) })},
		{"old kind", appends(func(r *raft.AppendEntriesRequest) {
			r.Entries = entry(func(l *raft.Log) { l.Type = raft.LogAddPeerDeprecated })
		})},
		{"gap", appends(func(r *raft.AppendEntriesRequest) { r.Entries = entry(func(l *raft.Log) { l.Index = 5 }) })},
		{"entry of a later term", appends(func(r *raft.AppendEntriesRequest) { r.Entries = entry(func(l *raft.Log) { l.Term = 100 }) })},
		{"too many entries", appends(func(r *raft.AppendEntriesRequest) { r.Entries = make([]*raft.Log, 100000) })},
		{"last term", appends(func(r *raft.AppendEntriesRequest) { r.Term = 1<<64 - 1 })},
		{"nameless", appends(func(r *raft.AppendEntriesRequest) { r.ID = nil })},
		{"own name", appends(func(r *raft.AppendEntriesRequest) { r.ID = []byte("n0.x") })},
		{"old protocol", appends(func(r *raft.AppendEntriesRequest) { r.ProtocolVersion = 0 })},
		{"vote for a stranger", func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
			h.ID = []byte("stranger.x")
			return p.RequestVote("", to, &raft.RequestVoteRequest{RPCHeader: h, Term: 99, LeadershipTransfer: true}, &raft.RequestVoteResponse{})
		}},
		{"pre-vote for a stranger", func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
			h.ID = []byte("stranger.x")
			return p.RequestPreVote("", to, &raft.RequestPreVoteRequest{RPCHeader: h, Term: 99}, &raft.RequestPreVoteResponse{})
		}},
		{"timeout now from a stranger", func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
			h.ID = []byte("stranger.x")
			return p.TimeoutNow("", to, &raft.TimeoutNowRequest{RPCHeader: h}, &raft.TimeoutNowResponse{})
		}},
		{"snapshot of 1 TiB", installs(configuration, func(r *raft.InstallSnapshotRequest) { r.Size = 1 << 40 })},
		{"snapshot of negative size", installs(configuration, func(r *raft.InstallSnapshotRequest) { r.Size = -1 })},
		{"snapshot with a bad configuration", installs([]byte{0xc1}, func(*raft.InstallSnapshotRequest) {})},
		{"snapshot of an old version", installs(configuration, func(r *raft.InstallSnapshotRequest) { r.SnapshotVersion = 0 })},
		{"snapshot of nothing", installs(configuration, func(r *raft.InstallSnapshotRequest) { r.LastLogIndex = 0 })},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := newCluster(t, 2, nil)
				leader := cl.form()
				term := leader.Term()
				attacker := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
					Stream: cl.network.listen("attacker:1/x"), Timeout: time.Minute, Logger: hclog.NewNullLogger(),
				})
				member := cl.others(leader)[0].config
				header := raft.RPCHeader{ProtocolVersion: 3, ID: []byte(member.ID), Addr: []byte(member.Address)}
				if string(header.ID) == "n0.x" { // the case "own name" needs the receiver to be n0
					leader = cl.others(leader)[0]
					header = raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1.x"), Addr: []byte("n1:7100/x")}
				}
				if err := c.send(attacker, raft.ServerAddress(leader.config.Address), header); err == nil {
					t.Error("taken")
				}
				if leader.Term() != term {
					t.Errorf("the term went from %d to %d", term, leader.Term())
				}
				cl.submit(cl.leader(), "still alive")
				_ = attacker.Close()
				attacker.CloseStreams()
				cl.stopAll()
			})
		})
	}
}

type send = func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error

// appends sends a message of term 9 that one thing is wrong with.
func appends(change func(r *raft.AppendEntriesRequest)) send {
	return func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
		request := &raft.AppendEntriesRequest{RPCHeader: h, Term: 9}
		change(request)
		return p.AppendEntries("", to, request, &raft.AppendEntriesResponse{})
	}
}

func installs(configuration []byte, change func(r *raft.InstallSnapshotRequest)) send {
	return func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
		request := &raft.InstallSnapshotRequest{RPCHeader: h, SnapshotVersion: 1, Term: 9, LastLogIndex: 1 << 30, LastLogTerm: 9, Configuration: configuration, Size: 4}
		change(request)
		return p.InstallSnapshot("", to, request, &raft.InstallSnapshotResponse{}, strings.NewReader("\x00\x01\x02\x03"))
	}
}

// What members say, and what a leader says that is no member yet to this node's knowledge, reaches Raft.
func TestLegitimateMessagesPass(t *testing.T) {
	configuration := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "n1.x", Address: "n1:1/x"}}})
	for name, send := range map[string]send{
		"heartbeat": appends(func(*raft.AppendEntriesRequest) {}),
		"entries": appends(func(r *raft.AppendEntriesRequest) {
			r.PrevLogEntry, r.PrevLogTerm = 4, 2
			r.Entries = []*raft.Log{
				{Index: 5, Term: 8, Type: raft.LogCommand}, {Index: 6, Term: 9, Type: raft.LogNoop}, {Index: 7, Term: 9, Type: raft.LogBarrier},
				{Index: 8, Term: 9, Type: raft.LogConfiguration, Data: configuration},
			}
		}),
		"leader that is not known": appends(func(r *raft.AppendEntriesRequest) { r.ID = []byte("n9.x") }),
		"vote": func(p *raft.NetworkTransport, to raft.ServerAddress, h raft.RPCHeader) error {
			return p.RequestVote("", to, &raft.RequestVoteRequest{RPCHeader: h, Term: 99}, &raft.RequestVoteResponse{})
		},
		"snapshot": installs(configuration, func(*raft.InstallSnapshotRequest) {}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, nil)
				go func() {
					rpc := <-p.transport.Consumer()
					if rpc.Reader != nil {
						if body, err := io.ReadAll(rpc.Reader); err != nil || !bytes.Equal(body, []byte{0, 1, 2, 3}) {
							t.Errorf("body %v, %v", body, err)
						}
					}
					rpc.Respond(nil, nil)
				}()
				if err := send(p.sender, p.address, p.header); err != nil {
					t.Error(err)
				}
				p.close()
			})
		})
	}
}

// A leader that dies in the middle of a snapshot, with its connection left open, holds this node's main loop for ten
// seconds and not for ever.
func TestSilentSnapshotSenderIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		configuration := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "n1.x", Address: "n1:1/x"}}})
		p := newPeer(t, nil)
		began := time.Now()
		ended := make(chan error, 1)
		go func() {
			rpc := <-p.transport.Consumer()
			_, err := io.Copy(io.Discard, rpc.Reader)
			ended <- err
			rpc.Respond(&raft.InstallSnapshotResponse{}, err)
		}()
		ctx, cancel := context.WithCancel(t.Context())
		sent := make(chan error, 1)
		go func() {
			sent <- p.sender.InstallSnapshot("", p.address, &raft.InstallSnapshotRequest{
				RPCHeader: p.header, SnapshotVersion: 1, Term: 9, LastLogIndex: 5, LastLogTerm: 9, Configuration: configuration, Size: 1 << 20,
			}, &raft.InstallSnapshotResponse{}, io.MultiReader(bytes.NewReader(make([]byte, 1000)), silence{ctx}))
		}()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "silent") {
			t.Errorf("the main loop's read ended with %v", err)
		}
		if took := time.Since(began); took > snapshotStall+time.Second {
			t.Errorf("given up after %v", took)
		}
		cancel()
		if err := <-sent; err == nil {
			t.Error("the sender believes that it was installed")
		}
		p.close()
	})
}

type silence struct{ ctx context.Context }

func (s silence) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, io.ErrUnexpectedEOF
}

// A late repeat of a snapshot is answered "done" and changes nothing. Without the guard Raft installs it: the follower goes
// back to its state and drops entries that it has acknowledged.
func TestLateSnapshotDoesNotTakeANodeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		leader := c.form()
		follower := c.others(leader)[0]
		for range 10 {
			c.submit(leader, "x")
		}
		c.converged()
		applied := follower.AppliedIndex()
		last := follower.LastIndex()
		again := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: c.network.listen("again:1/x"), Timeout: time.Minute, Logger: hclog.NewNullLogger(),
		})
		request := &raft.InstallSnapshotRequest{
			RPCHeader:       raft.RPCHeader{ProtocolVersion: 3, ID: []byte(leader.config.ID), Addr: []byte(leader.config.Address)},
			SnapshotVersion: 1, Term: leader.Term(), LastLogIndex: applied - 5, LastLogTerm: leader.Term(),
			Configuration: raft.EncodeConfiguration(leader.raft.GetConfiguration().Configuration()), Size: 7,
		}
		var response raft.InstallSnapshotResponse
		if err := again.InstallSnapshot("", raft.ServerAddress(follower.config.Address), request, &response, strings.NewReader(`["old"]`)); err != nil || !response.Success {
			t.Errorf("answer %+v, %v", response, err)
		}
		// Its last check, on Raft's main loop, does not depend on the first.
		follower.machine.snapshots.installing.Store(applied - 5)
		if _, err := follower.machine.snapshots.Create(1, applied-5, 1, raft.Configuration{}, 1, follower.transport); err == nil {
			t.Error("a snapshot behind this node is installed")
		}
		if first, err := follower.database.FirstIndex(); err != nil || first != 1 {
			t.Errorf("the log begins at %d, %v", first, err)
		}
		if follower.AppliedIndex() < applied || follower.LastIndex() < last {
			t.Errorf("applied %d and last index %d, were %d and %d", follower.AppliedIndex(), follower.LastIndex(), applied, last)
		}
		c.submit(c.leader(), "on")
		c.converged()
		_ = again.Close()
		again.CloseStreams()
		c.stopAll()
	})
}

// The library leaves accepted connections open when it closes, and a goroutine behind each.
func TestCloseEndsAcceptedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		p := newTransport(n.listen("n0:1/x"), hclog.NewNullLogger())
		conn, err := n.listen("n1:1/x").Dial("n0:1/x", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is still there: %v", err)
		}
	})
}
