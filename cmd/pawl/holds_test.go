package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// What operators and programs do with holds, over a real process: values, checks, conversions, force, history, and why.
func TestHolds(t *testing.T) {
	base := devPorts(t, 1)
	dev := startPawl(t, nil, "dev", "--nodes", "1", "--data", t.TempDir(), "--port", strconv.Itoa(base))
	dev.await(t, "ready")
	all := endpointsFlag(base, 1)
	run := func(line string) string {
		t.Helper()
		return must(t, append(strings.Fields(line), all)...)
	}
	refused := func(code int, want, line string) {
		t.Helper()
		r := pawl(t.Context(), append(strings.Fields(line), all)...)
		if r.code != code || !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("pawl %s: %+v, want code %d and %q", line, r, code, want)
		}
	}
	shows := func(line string, wants ...string) {
		t.Helper()
		out := run(line)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("pawl %s wrote\n%s\nwant %q in it", line, out, want)
			}
		}
	}

	held := answered[transport.AcquireResponse](t, "acquire", "deploy", "--owner", "ann", "--ttl", "1h", "--max-hold", "30m", "--lock-delay", "1h", "--value", "build\n7", all)
	if held.HoldMS == nil || *held.HoldMS != 30*60*1000 {
		t.Fatalf("got %+v", held)
	}
	shows("lock deploy", "deploy: exclusive", "ann", "build�7")
	shows(fmt.Sprintf("check deploy %d", held.Token), "valid: held by ann, exclusive")
	refused(exitLost, fmt.Sprintf("the newest is %d (stale_token)", held.Token), "check deploy 1")
	refused(exitLost, "no hold of this lock has this token", "force-release deploy --token 1 --reason x")
	shows(fmt.Sprintf("force-release deploy --token %d --reason stuck", held.Token), "ended 1 hold of deploy")
	shows("renew --session "+held.Session, "0 holds", fmt.Sprintf("lost deploy (token %d): stuck, by operator at 127.0.0.1", held.Token))
	shows("lock deploy", "free, but in its lock-delay for another 59m", "HELD BEFORE BY", "revoked")
	refused(exitNotGranted, "in its lock-delay after an unclean end, for another 59m", "acquire deploy")

	// Two sessions with tasks that wait in a chain: a ← second waits for a, holds b ← third waits for b.
	c, err := client.New([]string{"http://" + loopbackAddress(base)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	session := func(owner string) string {
		t.Helper()
		s, err := c.Calls().OpenSession(t.Context(), transport.SessionRequest{Owner: owner, TTLMS: 3_600_000, Labels: map[string]string{"zone": "b", "app": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		return s.Session
	}
	ask := func(session, task, name string, number uint64) (transport.AcquireResponse, error) {
		return c.Calls().Acquire(t.Context(), transport.AcquireRequest{Name: name, Session: session, Task: task, Request: number, WaitMS: 1}, "")
	}
	first, second, third := session("first"), session("second"), session("third")
	for i, r := range []struct {
		session, task, name string
		number              uint64
		granted             bool
	}{{first, "t1", "a", 1, true}, {second, "t2", "b", 1, true}, {second, "t2", "a", 2, false}, {third, "", "c", 1, true}, {third, "", "b", 2, false}} {
		if got, err := ask(r.session, r.task, r.name, r.number); err != nil || got.Granted != r.granted {
			t.Fatalf("request %d: %+v %v", i, got, err)
		}
	}
	tree := run("why c")
	for _, line := range []string{"c: exclusive\n", "└─ third, token ", "   └─ perhaps waits for b: exclusive\n", "      └─ second, task t2, token ", "         └─ waits for a: exclusive\n", "            └─ first, task t1, token "} {
		if !strings.Contains(tree, line) {
			t.Errorf("pawl why c wrote\n%s\nwant %q in it", tree, line)
		}
	}
	if got := answered[whyLock](t, "why", "c", all); len(got.Held) != 1 || !got.Held[0].Perhaps || got.Held[0].Waits[0].Held[0].Waits[0].Name != "a" {
		t.Errorf("got %+v", got)
	}
	if got := run("why free"); got != "free: free\n" {
		t.Errorf("got %q", got)
	}
	if got := run("why deploy"); !strings.HasPrefix(got, "deploy: free, but in its lock-delay") {
		t.Errorf("got %q", got)
	}
	if _, err := ask(first, "t1", "b", 2); exitCode(err) != exitNotGranted || !strings.Contains(sentence(err), "first (task t1) waits for b, held by second; second (task t2) waits for a, held by first") {
		t.Errorf("a deadlock is told as %q", sentence(err))
	}
	shows("sessions", "app=x,zone=b")
	shows("locks --waiting --sort queue", "a ", "b ")
	if out := run("locks --held --sort held --limit 1"); !strings.Contains(out, "\na ") {
		t.Errorf("held longest is not first:\n%s", out)
	}

	// A conversion, and one that waits.
	token := answered[transport.LockResponse](t, "lock", "c", all).Holders[0].Token
	converted := answered[transport.AcquireResponse](t, "convert", "c", "--session", third, "--of", "1", "--request", "3", "--token", token.String(), "--shared", all)
	if !converted.Granted || converted.Token <= token || converted.Locks[0].Mode != transport.ModeShared {
		t.Errorf("got %+v", converted)
	}
	shows("acquire c --shared --owner zed", "shared")
	shows(fmt.Sprintf("convert c --session %s --of 1 --request 4 --token %d --wait 10ms", third, converted.Token), "still waiting: repeat the command with the same --request 4")

	if code, _ := dev.end(t, syscall.SIGTERM); code != exitOK {
		t.Errorf("dev ended with %d: %s", code, dev.errors())
	}
}

func TestConfirmed(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES \n": true, "yes": true, "n\n": false, "\n": false, "": false, "yess\n": false, "no\ny\n": false} {
		var out bytes.Buffer
		if got := confirmed(strings.NewReader(answer), &out, "Sure?"); got != want || out.String() != "Sure? [y/N] " {
			t.Errorf("%q: %t after %q", answer, got, out.String())
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if (&program{stdin: null, stderr: os.Stderr}).interactive() {
		t.Error("the null device is taken for somebody")
	}
}
