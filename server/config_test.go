package server_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// three is a list of peers on three machines, of which this one is n1 at the given address.
func three(own string) []server.Peer {
	return []server.Peer{{Name: "n1", Address: own}, {Name: "n2", Address: "n2:7800"}, {Name: "n3", Address: "n3:7800"}}
}

// TestConfigRefused starts nodes with settings that cannot work. Each is refused at once with the setting's name, and
// nothing is written (C13).
func TestConfigRefused(t *testing.T) {
	loopback := []server.Peer{{Name: "n1", Address: "127.0.0.1:7800"}}
	for _, test := range []struct {
		name   string
		config server.Config
		want   string
	}{
		{"no name", server.Config{Peers: loopback}, "name:"},
		{"no peers", server.Config{Name: "n1"}, "peers:"},
		{"not in the list", server.Config{Name: "n9", Peers: loopback}, `peers: this node's name "n9"`},
		{"twice in the list", server.Config{Name: "n1", Peers: append(loopback, loopback...)}, `peers: "n1" is in the list twice`},
		{"two at one address", server.Config{Name: "n1", Peers: append(loopback, server.Peer{Name: "n2", Address: "127.0.0.1:7800"})}, "have the same address"},
		{"a name that is none", server.Config{Name: "n 1", Peers: []server.Peer{{Name: "n 1", Address: "127.0.0.1:7800"}}}, "peers:"},
		{"listed at 0.0.0.0", server.Config{Name: "n1", Peers: three("0.0.0.0:7800"), Insecure: true}, "peers: address of"},
		{"listed at [::]", server.Config{Name: "n1", Peers: three("[::]:7800"), Insecure: true}, "peers: address of"},
		{"listed without host", server.Config{Name: "n1", Peers: three(":7800"), Insecure: true}, "peers: address of"},
		{"listed without port", server.Config{Name: "n1", Peers: three("n1"), Insecure: true}, "peers: address of"},
		{"listed at a host that does not exist", server.Config{Name: "n1", Peers: three("nosuchhost.invalid:7800"), PeerListen: "0.0.0.0:7800", Insecure: true}, "peers: this node is listed at nosuchhost.invalid:7800"},
		{"listed at localhost among others", server.Config{Name: "n1", Peers: three("localhost:7800"), Insecure: true}, "where \"n2\" at n2:7800 cannot reach it"},
		{"listed with another port than it listens at", server.Config{Name: "n1", Peers: three("n1:7800"), PeerListen: "0.0.0.0:7801", Insecure: true}, "listens for peers at port 7801"},
		{"beyond loopback without TLS", server.Config{Name: "n1", Peers: loopback, APIListen: "0.0.0.0:7700"}, "api: 0.0.0.0:7700"},
		{"peers beyond loopback without TLS", server.Config{Name: "n1", Peers: three("n1:7800")}, "peer-listen:"},
		{"an API URL that is none", server.Config{Name: "n1", Peers: loopback, APIURL: "n1:7700"}, "api-url:"},
		{"an unknown profile", server.Config{Name: "n1", Peers: loopback, Profile: "swift"}, "profile:"},
		{"a floor that would use up the tokens", server.Config{Name: "n1", Peers: loopback, TokenFloor: 1<<52 + 1}, "token-floor:"},
		{"too few connections", server.Config{Name: "n1", Peers: loopback, MaxConns: 1}, "max-conns:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.DataDir = filepath.Join(t.TempDir(), "data")
			began := time.Now()
			n, err := server.Start(test.config)
			if err == nil {
				n.Crash()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("refused with %q, want %q", err, test.want)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("refused after %v", took)
			}
			if _, err := os.Stat(test.config.DataDir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

// TestForeignDataRefused starts a node on data that is not its own. It is refused with the reason, and the data stays as
// it was (C11).
func TestForeignDataRefused(t *testing.T) {
	address, other := freeAddress(t), freeAddress(t)
	config := func(name, dir string) server.Config {
		return server.Config{
			Name: name, DataDir: dir, APIListen: "127.0.0.1:0", Peers: []server.Peer{{Name: name, Address: address}},
		}
	}
	start := func(t *testing.T, c server.Config) *server.Node {
		t.Helper()
		n, err := server.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mustRefuse := func(t *testing.T, c server.Config, want ...string) {
		t.Helper()
		began := time.Now()
		n, err := server.Start(c)
		if err == nil {
			n.Crash()
			t.Fatal("it started")
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("refused with %q, want %q", err, w)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("refused after %v", took)
		}
	}
	dir := t.TempDir()
	start(t, config("x", dir)).Crash()
	before := fileContents(t, dir)
	t.Run("another node's", func(t *testing.T) {
		mustRefuse(t, config("y", dir), `"x"`, `"y"`, dir)
	})
	if after := fileContents(t, dir); after != before {
		t.Error("the data was changed")
	}
	n := start(t, config("x", dir)) // its own still works
	t.Run("in use", func(t *testing.T) {
		c := config("x", dir)
		c.Peers[0].Address = other
		mustRefuse(t, c, "in use")
	})
	n.Crash()
	identity := filepath.Join(dir, "node.json")
	kept, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, content, want string }{
		{"of a newer version", strings.Replace(string(kept), `"version": 1`, `"version": 2`, 1), "newer version"},
		{"damaged", "{", "damaged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(identity, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			mustRefuse(t, config("x", dir), test.want)
		})
	}
	t.Run("without its identity", func(t *testing.T) {
		if err := os.Remove(identity); err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, config("x", dir), "remove this node from the cluster")
	})
	if err := os.WriteFile(identity, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("without its log", func(t *testing.T) {
		if err := os.Remove(filepath.Join(dir, "raft.db")); err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, config("x", dir), "raft.db")
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// fileContents is the small files of a directory, as one text.
func fileContents(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(e.Name() + "\n" + string(b))
		}
	}
	return all.String()
}

// TestTokenFloor forms a cluster whose tokens stay above a floor; a later start with another floor changes nothing (R10).
func TestTokenFloor(t *testing.T) {
	const floor = 1_000_000
	c := pawltest.New(t, pawltest.Options{Nodes: 1, TCP: true, Configure: func(_ int, config *server.Config) { config.TokenFloor = floor }})
	defer c.Close()
	c.WaitReady()
	first := c.MustPost(0, 200, "/v1/acquire", `{"name":"a","owner":"o"}`).Field("token").(float64)
	if first <= floor || first > floor+100 {
		t.Errorf("the first token is %.0f", first)
	}
	c.Stop(0)
	c.Start(0)
	c.WaitReady()
	second := c.MustPost(0, 200, "/v1/acquire", `{"name":"b","owner":"o"}`).Field("token").(float64)
	if second <= first || second > first+100 {
		t.Errorf("after token %.0f, token %.0f", first, second)
	}
}
