package main

import (
	"encoding/json"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-lock/pawl/client"
)

// Events are followed through the end of the node that tells them, and being interrupted is no failure.
func TestEvents(t *testing.T) {
	const nodes = 3
	data, base := t.TempDir(), devPorts(t, nodes)
	all := endpointsFlag(base, nodes)
	arguments := []string{"dev", "--data", data, "--port", strconv.Itoa(base)}
	dev := startPawl(t, nil, arguments...)
	dev.await(t, "ready")

	people := startPawl(t, nil, "events", "--prefix", "jobs/", "--after", "0.0", all)
	programs := startPawl(t, nil, "events", "--json", "--after", "0.0", all)
	must(t, "acquire", "other", "--owner", "ann", all)
	must(t, "acquire", "jobs/1", "--owner", "ann", "--ttl", "1h", all)
	if line := people.await(t, ""); !strings.Contains(line, "granted") || !strings.Contains(line, "jobs/1  ann  (exclusive, token ") {
		t.Errorf("told was %q", line)
	}
	for _, name := range []string{"other", "jobs/1"} {
		var event client.Event
		if err := json.Unmarshal([]byte(programs.await(t, "")), &event); err != nil {
			t.Fatal(err)
		}
		if event.Kind != "granted" || event.Name != name || event.Token == 0 || event.ID == "" || event.Time == "" {
			t.Errorf("of %s was told %+v", name, event)
		}
	}

	dev.end(t, syscall.SIGTERM)
	dev = startPawl(t, nil, arguments...)
	dev.await(t, "ready")
	must(t, "acquire", "jobs/2", "--owner", "ann", all)
	if line := people.await(t, ""); !strings.Contains(line, "granted") || !strings.Contains(line, "jobs/2") {
		t.Errorf("after a restart was told %q", line)
	}
	for _, p := range []*process{people, programs} {
		if code, _ := p.end(t, syscall.SIGINT); code != exitOK || p.errors() != "" {
			t.Errorf("interrupted: exit code %d, %q", code, p.errors())
		}
	}
}
