package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// tcpCluster is three nodes on real sockets of this machine.
type tcpCluster struct {
	t         *testing.T
	nodes     []*server.Node
	addresses []string
}

func newTCPCluster(t *testing.T, maxConns int) *tcpCluster {
	t.Helper()
	c := &tcpCluster{t: t}
	var peers []server.Peer
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free; nobody else is told of it
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, server.Peer{Name: fmt.Sprintf("n%d", i+1), Address: l.Addr().String()})
		l.Close()
	}
	dir := t.TempDir()
	for _, p := range peers {
		c.start(server.Config{Name: p.Name, DataDir: dir + "/" + p.Name, Peers: peers, APIListen: "127.0.0.1:0", MaxConns: maxConns, Version: "test"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, n := range c.nodes {
		if err := n.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *tcpCluster) start(config server.Config) {
	c.t.Helper()
	n, err := server.Start(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { n.Stop(context.Background()) })
	c.nodes, c.addresses = append(c.nodes, n), append(c.addresses, n.APIAddress())
}

// indexes are where the nodes' states stand.
func (c *tcpCluster) indexes() string {
	c.t.Helper()
	var all []string
	for _, address := range c.addresses {
		answer, err := sendTo(c.t.Context(), http.DefaultClient, "http://"+address, "GET", "/livez", nil)
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, answer.Header.Get("Pawl-Index"))
	}
	return strings.Join(all, " ")
}

// level waits until all nodes stand at one index, which then is that of the log.
func (c *tcpCluster) level() string {
	c.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		at := strings.Fields(c.indexes())
		if at[0] == at[1] && at[1] == at[2] {
			return at[0]
		}
	}
	c.t.Fatal("the nodes never stood at one index")
	return ""
}

// rawLimit is how long an answer to raw bytes may take.
const rawLimit = 10 * time.Second

// raw sends bytes as they are and returns all that comes back until the node closes the connection or has answered so many
// times; sending goes on meanwhile and may fail when the node has had enough.
func raw(connection net.Conn, send io.Reader, answers int) (statuses []int, body string, sent int64, err error) {
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(rawLimit)); err != nil {
		return nil, "", 0, err
	}
	done := make(chan int64)
	go func() {
		n, _ := io.Copy(connection, send) // the node may close first
		done <- n
	}()
	reader := bufio.NewReader(connection)
	for range answers {
		response, e := http.ReadResponse(reader, nil)
		if e != nil {
			err = e
			break
		}
		b, _ := io.ReadAll(response.Body)
		statuses, body = append(statuses, response.StatusCode), string(b)
	}
	connection.Close()
	return statuses, body, <-done, err
}

// endless is a body in chunks that never ends.
type endless struct{ head *strings.Reader }

func (e endless) Read(b []byte) (int, error) {
	if e.head.Len() > 0 {
		return e.head.Read(b)
	}
	const chunk = "400\r\n"
	if len(b) < len(chunk)+0x400+2 {
		return 0, io.ErrShortBuffer
	}
	n := copy(b, chunk)
	n += copy(b[n:], strings.Repeat("x", 0x400)+"\r\n")
	return n, nil
}

func TestAPIOverTCP(t *testing.T) {
	c := newTCPCluster(t, 0)
	call := func(node int, method, path, body string, header ...string) pawltest.Answer {
		t.Helper()
		answer, err := sendTo(t.Context(), http.DefaultClient, "http://"+c.addresses[node], method, path, strings.NewReader(body), header...)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for node := range c.nodes {
		grant := call(node, "POST", "/v1/acquire", `{"name":"a","owner":"me","ttl_ms":60000}`)
		if grant.Status != 200 {
			t.Fatalf("acquire: %d %s", grant.Status, grant.Body)
		}
		if held := call((node+1)%3, "POST", "/v1/acquire", `{"name":"a","owner":"you"}`); held.Status != 409 || held.Field("code") != "held" {
			t.Errorf("second acquire: %d %s", held.Status, held.Body)
		}
		if r := call((node+2)%3, "POST", "/v1/release", released(grant)); r.Status != 200 {
			t.Errorf("release: %d %s", r.Status, r.Body)
		}
	}
	before := c.level()
	for node, address := range c.addresses {
		_, port, _ := net.SplitHostPort(address)
		for host, want := range map[string]int{
			address: 404, "localhost:" + port: 404, "localhost": 404, "127.0.0.1": 404, "[::1]:" + port: 404, "127.0.0.2:1": 404,
			"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:" + port: 403, "192.0.2.1:" + port: 403, "0.0.0.0:" + port: 403, "n1": 403,
		} {
			if answer := call(node, "GET", "/v1/nothing", "", "Host", host); answer.Status != want {
				t.Errorf("host %s: %d %s, want %d", host, answer.Status, answer.Body, want)
			}
		}
		if answer := call(node, "POST", "/v1/acquire", `{"name":"a","owner":"me"}`, "Host", "evil.example:"+port); answer.Status != 403 || answer.Field("code") != "forbidden" {
			t.Errorf("foreign host: %d %s", answer.Status, answer.Body)
		}
	}
	if after := c.level(); after != before {
		t.Errorf("the log went from %s to %s", before, after)
	}
}

// Bytes that no honest client sends, each to every node: the right refusal, soon, and nothing in the log (D04).
func TestAPIHostileBytes(t *testing.T) {
	c := newTCPCluster(t, 0)
	before := c.level()
	const post = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\n"
	const good = `{"name":"a","owner":"o"}`
	for _, test := range []struct {
		name     string
		send     io.Reader
		statuses []int // none: the connection is closed without an answer
		code     string
	}{
		{"10 MiB with a length", strings.NewReader(post + "Content-Length: 10485760\r\n\r\n" + strings.Repeat("x", 10<<20)), []int{413}, "too_large"},
		{"a length alone", strings.NewReader(post + "Content-Length: 10485760\r\n\r\n"), []int{413}, "too_large"},
		{"a length, and waiting to be told to go on", strings.NewReader(post + "Expect: 100-continue\r\nContent-Length: 65537\r\n\r\n"), []int{413}, "too_large"},
		{"a length beyond 2^63", strings.NewReader(post + "Content-Length: 9223372036854775808\r\n\r\n"), []int{400}, ""},
		{"chunks without end", endless{strings.NewReader(post + "Transfer-Encoding: chunked\r\n\r\n")}, []int{413}, "too_large"},
		{"a chunk that names 4 GiB", strings.NewReader(post + "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n" + strings.Repeat("x", 1<<20)), []int{413}, "too_large"},
		{"a bad chunk", strings.NewReader(post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), []int{400}, "invalid"},
		{"chunk size beyond 64 bits", strings.NewReader(post + "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\n"), []int{400}, "invalid"},
		{"64 KiB of headers", strings.NewReader(post + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"), []int{431}, ""},
		{"64 KiB of small headers", strings.NewReader(post + strings.Repeat("X-Header: value\r\n", 4096) + "\r\n"), []int{431}, ""},
		{"64 KiB of path", strings.NewReader("GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{431}, ""},
		{"gzip", strings.NewReader(post + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"), []int{415}, "unsupported_media"},
		{"transfer encoding gzip", strings.NewReader(post + "Transfer-Encoding: gzip\r\n\r\n"), []int{501}, ""},
		{"two lengths", strings.NewReader(post + "Content-Length: 24\r\nContent-Length: 25\r\n\r\n" + good), []int{400}, ""},
		{"negative length", strings.NewReader(post + "Content-Length: -1\r\n\r\n"), []int{400}, ""},
		{"no host", strings.NewReader("GET /livez HTTP/1.1\r\n\r\n"), []int{400}, ""},
		{"two hosts", strings.NewReader("GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), []int{400}, ""},
		{"HTTP/1.0 without host", strings.NewReader("GET /livez HTTP/1.0\r\n\r\n"), []int{403}, "forbidden"},
		{"host in the target", strings.NewReader("GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{403}, "forbidden"},
		{"CONNECT", strings.NewReader("CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{404}, "not_found"},
		{"a header with a NUL", strings.NewReader(post + "Idempotency-Key: a\x00b\r\nContent-Length: 0\r\n\r\n"), []int{400}, ""},
		{"OPTIONS *", strings.NewReader("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{404}, "not_found"},
		{"another protocol", strings.NewReader("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), []int{400}, ""},
		{"HTTP/2 unasked", strings.NewReader("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []int{403}, ""},
		{"two at once", strings.NewReader(strings.Repeat("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 2)), []int{200, 200}, ""},
		{"one hidden in the body of another", strings.NewReader(post + "Content-Length: 5\r\n\r\n{}   GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"), []int{400, 404}, "not_found"},
	} {
		for node, address := range c.addresses {
			connection, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if seeker, ok := test.send.(io.Seeker); ok {
				_, _ = seeker.Seek(0, io.SeekStart)
			}
			if e, ok := test.send.(endless); ok {
				_, _ = e.head.Seek(0, io.SeekStart)
			}
			began := time.Now()
			statuses, body, sent, err := raw(connection, test.send, len(test.statuses))
			if fmt.Sprint(statuses) != fmt.Sprint(test.statuses) || !strings.Contains(body, test.code) {
				t.Errorf("%s to n%d: %v %s (%v), want %v %s", test.name, node+1, statuses, short(body), err, test.statuses, test.code)
			}
			// As much as fits in the buffers of both ends, and not more.
			if took := time.Since(began); took > 5*time.Second || sent > 32<<20 {
				t.Errorf("%s to n%d: took %v and %d bytes", test.name, node+1, took, sent)
			}
		}
	}
	if after := c.level(); after != before {
		t.Errorf("the log went from %s to %s", before, after)
	}
}

// Above the limit a connection is closed at once; the node still answers those that it has, its peers still reach it, and
// when the flood is over everybody does (C25).
func TestAPIConnectionLimit(t *testing.T) {
	const limit, more = 16, 40
	c := newTCPCluster(t, limit)
	http.DefaultClient.CloseIdleConnections()
	leader := 0
	for i, n := range c.nodes {
		if n.Leads() {
			leader = i
		}
	}
	var open []net.Conn
	closed := 0
	for range limit + more {
		connection, err := net.Dial("tcp", c.addresses[leader])
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		open = append(open, connection)
	}
	for _, connection := range open[limit:] {
		_ = connection.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := connection.Read(make([]byte, 1)); err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			closed++
		}
	}
	if closed < more-1 || closed > more+1 {
		t.Errorf("%d connections were closed, want %d", closed, more)
	}
	// One that it has.
	answered := 0
	for _, connection := range open[:limit/2] {
		statuses, _, _, _ := raw(connection, strings.NewReader("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"), 1)
		if len(statuses) == 1 && statuses[0] == 200 {
			answered++
		}
	}
	if answered < limit/2-1 {
		t.Errorf("%d of %d connections within the limit are answered", answered, limit/2)
	}
	// Through another node, to the one under the flood.
	answer, err := sendTo(t.Context(), http.DefaultClient, "http://"+c.addresses[(leader+1)%3], "POST", "/v1/acquire", strings.NewReader(`{"name":"a","owner":"me"}`))
	if err != nil || answer.Status != 200 {
		t.Errorf("through another node: %v %d %s", err, answer.Status, answer.Body)
	}
	for _, connection := range open {
		connection.Close()
	}
	for end := time.Now().Add(10 * time.Second); ; {
		answer, err := sendTo(t.Context(), http.DefaultClient, "http://"+c.addresses[leader], "POST", "/v1/acquire", strings.NewReader(`{"name":"b","owner":"me"}`))
		if err == nil && (answer.Status == 200 || answer.Status == 409) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the flood: %v %d %s", err, answer.Status, answer.Body)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Those who send slowly are not waited for, and those who are slow to read the answer hold nobody else up.
func TestAPISlowSenders(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		// No session lives, so that no tick is due.
		for node := range a.Size() {
			a.untouched("slow senders", func() {
				for _, c := range []struct {
					name, send string
					within     time.Duration
					want       string
				}{
					{"nothing", "", 6 * time.Second, ""},
					{"half a line", "POST /v1/acq", 6 * time.Second, ""},
					{"half a header", "POST /v1/acquire HTTP/1.1\r\nHost: n1\r\n", 6 * time.Second, ""},
					{"half a body for no path", "POST /v1/nothing HTTP/1.1\r\nHost: n1\r\nContent-Length: 100\r\n\r\n{", 16 * time.Second, "HTTP/1.1 404"},
					{"half a body from another site", "POST /v1/acquire HTTP/1.1\r\nHost: n1\r\nOrigin: http://evil.example\r\nContent-Length: 100\r\n\r\n{", 16 * time.Second, "HTTP/1.1 403"},
					{"half a chunk", "POST /v1/acquire HTTP/1.1\r\nHost: n1\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{", 16 * time.Second, "HTTP/1.1 400"},
					{"half of too much", "POST /v1/acquire HTTP/1.1\r\nHost: n1\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat("x", 66_000), 16 * time.Second, "HTTP/1.1 413"},
					{"a read with half a body", "GET /v1/nothing HTTP/1.1\r\nHost: n1\r\nContent-Length: 100\r\n\r\n{", 16 * time.Second, "HTTP/1.1 404"},
					{"half a body", "POST /v1/acquire HTTP/1.1\r\nHost: n1\r\nContent-Length: 100\r\n\r\n{", 16 * time.Second, "HTTP/1.1 400"},
				} {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					connection, err := a.Network.Host("slow").Dial(ctx, a.Name(node)+":7700")
					cancel()
					if err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					_, _ = io.WriteString(connection, c.send)
					_ = connection.SetReadDeadline(began.Add(time.Minute))
					answer, _ := io.ReadAll(connection)
					if took := time.Since(began); took > c.within || !bytes.HasPrefix(answer, []byte(c.want)) {
						t.Errorf("%s to %s: %v, %q", c.name, a.Name(node), took, answer)
					}
					connection.Close()
				}
			})
		}
	})
}

// A caller without number or key closes its sending half as soon as it has asked. It has the lock, or is not told that it has.
func TestHalfClosedCaller(t *testing.T) {
	c := newTCPCluster(t, 0)
	told := map[int]int{}
	for i := range 60 {
		name, node := fmt.Sprint("lock", i), c.addresses[i%len(c.addresses)]
		wait := i % 2 * 1000
		conn, err := net.Dial("tcp", node)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"name":%q,"owner":"o","ttl_ms":60000,"wait_ms":%d}`, name, wait)
		fmt.Fprintf(conn, "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		time.Sleep(time.Duration(i%10) * 500 * time.Microsecond)
		conn.(*net.TCPConn).CloseWrite()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		status := 0
		if err == nil {
			status = answer.StatusCode
			answer.Body.Close()
		}
		conn.Close()
		told[status]++
		time.Sleep(20 * time.Millisecond) // what is taken back is by then
		view, err := sendTo(t.Context(), http.DefaultClient, "http://"+node, "GET", "/v1/lock?name="+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if holders, _ := view.Field("holders").([]any); status == 200 && len(holders) != 1 {
			t.Errorf("%s: told %d, and its holders are %v", name, status, holders)
		}
	}
	t.Log(told)
}
