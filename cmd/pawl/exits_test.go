package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

func TestExitCode(t *testing.T) {
	harmless := transport.NewError(transport.ErrInternal, "x")
	harmless.Applied = transport.AppliedNo
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"nothing", nil, exitOK},
		{"held", transport.NewError(transport.ErrHeld, "x"), exitNotGranted},
		{"delayed", transport.NewError(transport.ErrDelayed, "x"), exitNotGranted},
		{"not held", transport.NewError(transport.ErrNotHeld, "x"), exitLost},
		{"session gone, wrapped", fmt.Errorf("renewing: %w", transport.NewError(transport.ErrSessionGone, "x")), exitLost},
		{"invalid", transport.NewError(transport.ErrInvalid, "x"), exitUsage},
		{"usage", &failure{usageError{errors.New("x")}}, exitUsage},
		{"no leader", fmt.Errorf("%w: %w", client.ErrUnavailable, transport.NewError(transport.ErrNoLeader, "x")), exitNoCluster},
		{"unreachable", fmt.Errorf("%w: %w", client.ErrUnavailable, refused), exitNoCluster},
		// What the last attempt said must not hide that an earlier one may have happened.
		{"unknown", fmt.Errorf("%w: %w: %w", client.ErrUnavailable, transport.NewError(transport.ErrUnknownOutcome, "x"), transport.NewError(transport.ErrNoLeader, "x")), exitUnknown},
		{"a bug of the node", transport.NewError(transport.ErrInternal, "x"), exitUnknown},
		{"a bug of the node in a read", harmless, exitFailure},
		{"quota", transport.NewError(transport.ErrQuota, "x"), exitFailure},
		{"anything", errors.New("x"), exitFailure},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

func TestReportIsOneLineWithTheCode(t *testing.T) {
	problem := transport.NewError(transport.ErrHeld, "the lock is held")
	problem.Holders = []transport.Holder{{Owner: "ann@host:1", Token: 7, HeldMS: 61_000}, {Owner: "b", Token: 7}, {Owner: "c", Token: 7}, {Owner: "d", Token: 7}}
	for _, test := range []struct {
		err  error
		want string
	}{
		{problem, "pawl: the lock is held; held by ann@host:1 (token 7, for 1m1s), b (token 7, for 0s), c (token 7, for 0s) and 1 more (held)\n"},
		{usageError{errors.Join(errors.New("name: is required"), errors.New("data: too"))}, "pawl: name: is required; data: too (see pawl server --help)\n"},
		{fmt.Errorf("calling: %w: %w", client.ErrUnavailable, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}), "pawl: no node could be reached: dial tcp: refused\n"},
		{fmt.Errorf("calling: %w: %w", client.ErrUnavailable, transport.NewError(transport.ErrNoLeader, "none is known")), "pawl: no node could serve the request: none is known (no_leader)\n"},
	} {
		var stdout, stderr bytes.Buffer
		p := &program{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
		p.report("pawl server", test.err)
		if stderr.String() != test.want || stdout.Len() > 0 {
			t.Errorf("got %q and %q, want %q", stderr.String(), stdout.String(), test.want)
		}
	}
}

func TestReportGivesProgramsTheProblem(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }, json: true}
	if code := p.report("pawl acquire", transport.NewError(transport.ErrHeld, "x")); code != exitNotGranted {
		t.Errorf("got exit code %d", code)
	}
	if !strings.Contains(stdout.String(), `"code":"held"`) {
		t.Errorf("stdout has %q", stdout.String())
	}
}
