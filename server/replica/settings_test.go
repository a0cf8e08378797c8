package replica

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

func TestProfiles(t *testing.T) {
	for _, name := range []string{"", "default", "fast", "slow"} {
		timing, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := timing.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Profile("faster"); err == nil || !strings.Contains(err.Error(), "faster") {
		t.Errorf("unknown profile: %v", err)
	}
}

func TestTimingRules(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		timing Timing
		want   string
	}{
		{Timing{10 * ms, 10 * ms, 10 * ms}, "below 50ms"},
		{Timing{20 * time.Second, 20 * time.Second, 15 * time.Second}, "above 10s"},
		{Timing{500 * ms, 400 * ms, 400 * ms}, "shorter than the heartbeat"},
		{Timing{500 * ms, 6000 * ms, 400 * ms}, "more than ten heartbeat"},
		{Timing{500 * ms, 500 * ms, 600 * ms}, "longer than the heartbeat"},
		{Timing{500 * ms, 500 * ms, 200 * ms}, "less than half the heartbeat"},
	} {
		err := c.timing.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want only %q", c.timing, err, c.want)
		}
	}
}

func TestConfigurationNamesEveryFault(t *testing.T) {
	_, err := Open(Config{})
	if err == nil {
		t.Fatal("opened with nothing")
	}
	for _, want := range []string{"an id", "an address", "a data directory", "a state machine", "a stream layer", "stop the process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	layer := newNetwork().listen("elsewhere:1/x")
	if _, err := Open(Config{Stream: layer, Address: "here:1/x"}); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("another address: %v", err)
	}
	select {
	case <-layer.closed:
	default:
		t.Error("the stream layer stays open")
	}
}

// F07: ten minutes of a dead peer are some sixty lines, and nothing below a warning is written.
func TestChatterIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := newQuiet(hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Trace}))
		for range 6000 {
			logger.Warn("failed to contact", "server-id", "n3")
			logger.Named("x").With("a", 1).Info("entering follower state")
			logger.Debug("no")
			logger.Trace("no")
			<-time.After(100 * time.Millisecond)
		}
		logger.With("b", 2).Error("another message")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) < 55 || len(lines) > 65 {
			t.Errorf("%d lines", len(lines))
		}
		if !strings.Contains(lines[1], "left_out=99") || !strings.Contains(out.String(), "another message") || strings.Contains(out.String(), "follower") {
			t.Errorf("lines %q … %q", lines[1], lines[len(lines)-1])
		}
	})
}
