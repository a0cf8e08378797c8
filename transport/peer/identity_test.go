package peer

import (
	"strings"
	"testing"
)

func TestIdentityAndAddress(t *testing.T) {
	life := NewIncarnation()
	if !validIncarnation(life) || life == NewIncarnation() {
		t.Errorf("incarnation %q", life)
	}
	want := Identity{"node.with.dots", life}
	if got, err := ParseIdentity(want.String()); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "n1", "n1.", "." + life, "n1." + life[1:], "n1." + strings.ToUpper("abcdef0123456789"), "n/1." + life} {
		if got, err := ParseIdentity(bad); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
	for _, hostport := range []string{"n1:7800", "10.0.0.1:7800", "[::1]:7800"} {
		got, incarnation, err := SplitAddress(Address(hostport, life))
		if err != nil || got != hostport || incarnation != life {
			t.Errorf("%q: %q, %q, %v", hostport, got, incarnation, err)
		}
	}
	for _, bad := range []string{"", "n1:7800", "n1:7800/", "n1:7800/x", "n1/" + life, ":7800/" + life, "n1:/" + life, "n1:0/" + life,
		"0.0.0.0:7800/" + life, "[::]:7800/" + life} {
		if _, _, err := SplitAddress(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no name":            func(c *Config) { c.Self.Name = "" },
		"no incarnation":     func(c *Config) { c.Self.Incarnation = "" },
		"no cluster":         func(c *Config) { c.Cluster = nil },
		"timeout too long":   func(c *Config) { c.HandshakeTimeout = maxHandshakeTimeout + 1 },
		"too few":            func(c *Config) { c.MaxConns = 1 },
		"peer above total":   func(c *Config) { c.MaxConns, c.MaxConnsPerPeer = 8, 9 },
		"advertise anything": func(c *Config) { c.Advertise = "0.0.0.0:7800" },
		"nothing to dial":    func(c *Config) { c.Listen = "0.0.0.0:0" },
	} {
		config := Config{Listen: "127.0.0.1:0", Self: identity("n1", 1), Cluster: constant("")}
		spoil(&config)
		if port, err := Open(config); err == nil {
			t.Errorf("%s: was taken", name)
			port.Close()
		}
	}
}
