package client

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/pawl-lock/pawl/transport"
)

// Option changes a Client made by New.
type Option func(*Client)

// WithOwner says who holds the locks, as people shall read it: 1 to 256 bytes
// without control characters. The default is
// host/program:pid.
func WithOwner(owner string) Option { return func(c *Client) { c.owner = owner } }

// WithTTL sets how long the session outlives its last renewal: 500 ms to 24 h,
// in whole milliseconds, 15 s by default. It is renewed every third of it.
func WithTTL(ttl time.Duration) Option { return func(c *Client) { c.ttl = ttl } }

// WithLabels gives the session up to 16 labels for people to find it by: keys of 1
// to 64 bytes, values of up to 256, without control characters.
func WithLabels(labels map[string]string) Option {
	return func(c *Client) { c.labels = maps.Clone(labels) }
}

// WithHTTPClient makes the Client use the given one, whose Transport decides
// about TLS and connections. Its Timeout must be 0: calls bound themselves, and
// some wait.
func WithHTTPClient(client *http.Client) Option { return func(c *Client) { c.http = *client } }

// WithCredential makes the Client send what bearer gives, if it is not "", as a bearer
// token, to the endpoints and nowhere else. It is called before every attempt, from
// several goroutines, and must not block; so credentials can be renewed.
func WithCredential(bearer func() string) Option {
	return func(c *Client) { c.credential = bearer }
}

// WithLogger makes the Client log failed attempts (debug) and lost sessions
// (warn). By default it logs nothing.
func WithLogger(logger *slog.Logger) Option { return func(c *Client) { c.log = logger } }

// WithClock replaces the clock that leases are counted on. It is for tests in
// virtual time: now must never go back and must count suspended time.
func WithClock(now func() time.Duration) Option { return func(c *Client) { c.now = now } }

// defaults gives a Client what no option has changed yet.
func defaults() *Client {
	pool := defaultTransport()
	return &Client{
		owner: defaultOwner(),
		ttl:   transport.DefaultTTLMS * time.Millisecond,
		http:  http.Client{Transport: pool},
		pool:  pool,
		log:   slog.New(slog.DiscardHandler),
		now:   bootTime,
	}
}

// defaultOwner says where to look at three in the morning: on which host, which
// program, which of its processes.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%s:%d", plain(host, 120), plain(filepath.Base(os.Args[0]), 100), os.Getpid())
}

// plain gives what can stand in an owner of the text, at most so many bytes.
func plain(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// defaultTransport keeps as many connections as there are calls at a time in
// ordinary use: with Go's default of two a node, waiting calls would open and
// close one each (D12).
func defaultTransport() *http.Transport {
	pool, ordinary := http.DefaultTransport.(*http.Transport)
	if ordinary {
		pool = pool.Clone()
	} else { // a program may have wrapped it, to trace all it sends
		pool = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second}
	}
	pool.MaxIdleConnsPerHost = 64
	pool.IdleConnTimeout = 60 * time.Second
	return pool
}
