package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// target is whom a dial wants: who answers at an address, if it is this incarnation ("" = any).
type target struct{ hostport, incarnation string }

func (t target) String() string {
	if t.incarnation == "" {
		return t.hostport
	}
	return Address(t.hostport, t.incarnation)
}

// DialError is every failure to reach a peer, up to the end of the handshake. Whatever was to be sent over the
// connection was surely not sent, so a forwarded request that failed with it is *not applied* (R14).
type DialError struct {
	Target string // host:port or host:port/incarnation
	Err    error
}

func (e *DialError) Error() string { return "dialling peer " + e.Target + ": " + e.Err.Error() }

// Unwrap gives the cause, in which errors.Is finds what was refused.
func (e *DialError) Unwrap() error { return e.Err }

// matchClusters is the rule of both ends. Raft needs one cluster that both know. HTTP allows nodes that do not know
// theirs yet, and lets anybody ask whoever answers who it is: that is how a cluster forms and how others join.
func matchClusters(k kind, wanted, ours, theirs string) refusal {
	switch {
	case k == kindRaft && (ours == "" || theirs == ""):
		return refusedNoCluster
	case k == kindHTTP && (wanted == "" || ours == "" || theirs == ""):
		return accepted
	case ours != theirs:
		return refusedCluster
	}
	return accepted
}

// judge says whether a well-formed hello may come in.
func (p *Port) judge(h hello, cluster string) refusal {
	switch {
	case h.wanted != "" && h.wanted != p.config.Self.Incarnation, h.wanted == "" && h.kind == kindRaft:
		return refusedIncarnation
	case h.kind == kindRaft && h.from == p.config.Self:
		return refusedSelf
	}
	return matchClusters(h.kind, h.wanted, cluster, h.cluster)
}

// welcome takes one accepted connection through the handshake and hands it on. It blocks no longer than the
// handshake's deadline, which is absolute: a byte now and then does not extend it.
func (p *Port) welcome(raw net.Conn) {
	defer p.endHandshake(raw)
	raw.SetDeadline(time.Now().Add(p.config.HandshakeTimeout))
	secured, err := p.secure(p.ctx, raw)
	if err != nil {
		raw.Close()
		return
	}
	frame, err := readFrame(secured, helloMagic)
	if errors.Is(err, ErrMalformed) {
		p.refuse(secured, hello{}, "", refusedMalformed)
		return
	}
	if err != nil {
		secured.Close() // no hello at all: nobody there who would understand an answer
		return
	}
	cluster := p.config.Cluster()
	h, code := parseHello(frame)
	if code == accepted {
		code = p.judge(h, cluster)
	}
	if code != accepted {
		p.refuse(secured, h, cluster, code)
		return
	}
	c := &conn{
		Conn: secured, port: p, kind: h.kind, accepted: true, peer: h.from, cluster: h.cluster,
		stranger: cluster == "" || h.cluster != cluster,
	}
	if code := p.admit(c, raw); code != accepted {
		p.refuse(secured, h, cluster, code)
		return
	}
	yes := answer{code: accepted, nonce: h.nonce, cluster: cluster, from: p.config.Self}
	if _, err := secured.Write(yes.frame()); err != nil {
		c.Close()
		return
	}
	secured.SetDeadline(time.Time{})
	if h.kind == kindRaft {
		p.raftQueue.push(&acceptedStream{conn: c})
	} else {
		p.httpQueue.push(c)
	}
}

// refuse answers with the reason, logs it now and then, and closes the connection.
func (p *Port) refuse(raw net.Conn, h hello, cluster string, code refusal) {
	defer raw.Close()
	reason := code.err().Error()
	if code == refusedIncarnation {
		reason = "this is " + p.config.Self.String()
	}
	no := answer{code: code, nonce: h.nonce, cluster: cluster, from: p.config.Self, reason: reason}
	raw.Write(no.frame()) // a dialler that has gone already needs no answer
	if suppressed, ok := p.refusals.allow(code); ok {
		p.config.Logger.Warn("refused a peer connection", "reason", code.err(), "kind", h.kind, "remote", raw.RemoteAddr(),
			"from", h.from, "wanted", h.wanted, "cluster", h.cluster, "not-logged-before", suppressed)
	}
}

// dial reaches a peer and makes sure that it is the right one. Every error is a *DialError.
func (p *Port) dial(ctx context.Context, k kind, to target) (*conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()

	c, err := p.dialOnce(ctx, k, to)
	if err == nil {
		return c, nil
	}
	if p.ctx.Err() != nil {
		err = ErrClosing
	}
	return nil, &DialError{Target: to.String(), Err: err}
}

func (p *Port) dialOnce(ctx context.Context, k kind, to target) (*conn, error) {
	h := hello{kind: k, cluster: p.config.Cluster(), from: p.config.Self, wanted: to.incarnation}
	rand.Read(h.nonce[:])
	if k == kindRaft && h.cluster == "" {
		return nil, ErrNoCluster
	}
	raw, err := p.config.Network.Dial(ctx, to.hostport)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(p.config.HandshakeTimeout)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(deadline) {
		deadline = earlier
	}
	raw.SetDeadline(deadline)
	// When ctx ends early, a deadline in the past wakes the reads and writes below.
	interrupted := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })

	secured, a, err := p.introduce(ctx, raw, h)
	if !interrupted() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	secured.SetDeadline(time.Time{})
	c := &conn{Conn: secured, port: p, kind: k, peer: a.from, cluster: a.cluster, target: to}
	if !p.keep(c) {
		secured.Close()
		return nil, ErrClosing
	}
	return c, nil
}

// introduce says the hello and judges the answer, by the same rules as the listener: a listener that took us in by
// mistake must not get a byte of Raft either.
func (p *Port) introduce(ctx context.Context, raw net.Conn, h hello) (net.Conn, answer, error) {
	secured, err := p.secure(ctx, raw)
	if err != nil {
		return nil, answer{}, fmt.Errorf("securing the connection: %w", err)
	}
	if _, err := secured.Write(h.frame()); err != nil {
		return nil, answer{}, fmt.Errorf("sending the handshake: %w", err)
	}
	frame, err := readFrame(secured, answerMagic)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, answer{}, fmt.Errorf("%w: connection closed in the handshake", ErrNotPawl)
	case err != nil:
		return nil, answer{}, fmt.Errorf("reading the handshake's answer: %w", err)
	}
	a, err := parseAnswer(frame)
	if err != nil {
		return nil, answer{}, err
	}
	if a.code != accepted {
		return nil, a, &RefusedError{Cause: a.code.err(), Reason: a.reason, Peer: a.from, Cluster: a.cluster}
	}
	switch {
	case a.nonce != h.nonce:
		return nil, a, fmt.Errorf("%w: answer to another hello", ErrMalformed)
	case h.wanted != "" && a.from.Incarnation != h.wanted:
		return nil, a, fmt.Errorf("%w: %s answered", ErrWrongIncarnation, a.from)
	case h.kind == kindRaft && a.from == h.from:
		return nil, a, ErrSelf
	}
	if code := matchClusters(h.kind, h.wanted, h.cluster, a.cluster); code != accepted {
		return nil, a, fmt.Errorf("%w: %s answered", code.err(), a.from)
	}
	return secured, a, nil
}
