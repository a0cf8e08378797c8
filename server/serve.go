package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// call is one request on its way through a node.
type call struct {
	context.Context
	request   *http.Request
	query     url.Values
	body      []byte
	key       string // Idempotency-Key
	forwarded bool   // by a follower: it must be answered here
	reads     bool   // changes nothing, so nothing is lost when it is given up
	index     uint64 // log index that the answer reflects; handlers set it
	streams   bool   // it is answered for as long as the caller likes

	standIn *standIn // set for a wait without number or key
}

// reply is what a handler answers.
type reply struct {
	status int
	body   any
}

// handler runs a request whose body and query were checked.
type handler func(*call) (reply, error)

// route is one method of one path. parse checks everything about a request that needs no state, and returns what to run;
// so bad input costs nothing else, is refused the same way on every node, and is never passed on.
type route struct {
	parse func(*Node, *call) (handler, error)
	here  bool // answered by the node that was asked, whether it leads or not
	reads bool // changes nothing

	request    reflect.Type // of its message; nil for one without a body
	parameters []string     // of its query
}

// routes is the API: path → method → route.
var routes = map[string]map[string]route{
	"/v1/acquire":          {"POST": post((*Node).acquire)},
	"/v1/renew":            {"POST": post((*Node).renewSession)},
	"/v1/release":          {"POST": post((*Node).release)},
	"/v1/cancel":           {"POST": post((*Node).cancelRequest)},
	"/v1/convert":          {"POST": post((*Node).convert)},
	"/v1/check":            {"POST": reading(post((*Node).check))},
	"/v1/value":            {"POST": post((*Node).setValue)},
	"/v1/force-release":    {"POST": post((*Node).forceRelease)},
	"/v1/session":          {"POST": post((*Node).openSession)},
	"/v1/session/close":    {"POST": post((*Node).closeSession)},
	"/v1/raise":            {"POST": post((*Node).raise)},
	"/v1/lock":             {"GET": get((*Node).readLock, "name")},
	"/v1/locks":            {"GET": get((*Node).readLocks, "prefix", "after", "limit", "held", "waiting", "sort")},
	"/v1/sessions":         {"GET": get((*Node).readSessions, "after", "limit", "owner")},
	"/v1/cluster":          {"GET": get(bare((*Node).readCluster))},
	"/v1/cluster/transfer": {"POST": post((*Node).transfer)},
	"/v1/cluster/remove":   {"POST": post((*Node).removeMember)},
	"/v1/events":           {"GET": hereOnly(get((*Node).readEvents, "prefix", "after"))},
	"/livez":               {"GET": local((*Node).livez)},
	"/readyz":              {"GET": local((*Node).readyz)},
	"/openapi.json":        {"GET": local((*Node).readOpenAPI)},
	"/metrics":             {"GET": local((*Node).readMetrics)},
}

// validated is a request message of the wire.
type validated[Req any] interface {
	*Req
	Validate() error
}

// post makes a route whose body is one JSON message.
func post[Req any, P validated[Req]](run func(*Node, *call, *Req) (reply, error)) route {
	return route{request: reflect.TypeFor[Req](), parse: func(n *Node, c *call) (handler, error) {
		for _, name := range slices.Sorted(maps.Keys(c.query)) {
			return nil, badField(name, "is in the query, and this call takes none")
		}
		message := new(Req)
		body := c.body
		if keyed, ok := any(message).(interface{ ValidateKey(string) error }); ok {
			if len(body) == 0 && c.key != "" {
				body = []byte("{}") // a cancel by key says everything in the header
			}
			if err := decode(body, P(message)); err != nil {
				return nil, err
			}
			if err := keyed.ValidateKey(c.key); err != nil {
				return nil, err
			}
		} else if c.key != "" {
			return nil, badField(transport.HeaderIdempotencyKey, "is for acquires without a session and their cancel")
		} else if err := decode(body, P(message)); err != nil {
			return nil, err
		}
		if a, ok := any(message).(*transport.AcquireRequest); ok && a.Session == "" && c.key == "" && a.WaitMS > 0 {
			if err := standInFor(c, time.Duration(a.WaitMS)*time.Millisecond); err != nil {
				return nil, err
			}
		}
		return func(c *call) (reply, error) { return run(n, c, message) }, nil
	}}
}

// reading marks a route with a body that changes nothing all the same.
func reading(r route) route {
	r.reads = true
	return r
}

func decode[Req any, P validated[Req]](body []byte, message P) error {
	if err := transport.Decode(body, message); err != nil {
		return err
	}
	return message.Validate()
}

// get makes a route that reads, with these parameters and consistency. parse checks their values.
func get(parse func(*Node, *call) (handler, error), parameters ...string) route {
	parameters = append(parameters, "consistency")
	return route{parameters: parameters, parse: func(n *Node, c *call) (handler, error) {
		for _, name := range slices.Sorted(maps.Keys(c.query)) {
			values := c.query[name]
			switch {
			case !slices.Contains(parameters, name):
				return nil, badField(name, "is no parameter of this call")
			case len(values) != 1:
				return nil, badField(name, "is given %d times", len(values))
			}
		}
		if v, given := c.query["consistency"]; given && v[0] != "stale" && v[0] != "linearizable" {
			return nil, badField("consistency", `must be "linearizable" or "stale"`)
		}
		return parse(n, c)
	}}
}

// bare is for reads without parameters of their own.
func bare(run func(*Node, *call) (reply, error)) func(*Node, *call) (handler, error) {
	return func(n *Node, _ *call) (handler, error) {
		return func(c *call) (reply, error) { return run(n, c) }, nil
	}
}

// local makes a route that every node answers for itself.
func local(run func(*Node, *call) (reply, error)) route { return hereOnly(get(bare(run))) }

func hereOnly(r route) route {
	r.here = true
	return r
}

func badField(field, format string, args ...any) error {
	e := transport.NewError(transport.ErrInvalid, "%s %s", field, fmt.Sprintf(format, args...))
	e.Field = field
	return e
}

// apiServer is the HTTP server of the API port, with every bound set.
func (n *Node) apiServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.serve(w, r, false) }),
		ReadHeaderTimeout: 5 * time.Second,
		// "OPTIONS *" is a path that there is not.
		DisableGeneralOptionsHandler: true,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               16 << 10,
		ErrorLog:                     log.New(n.log.Named("api").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
		ConnState:                    n.countConn,
	}
}

// boundBody ends a body whose sender stalls, also one that nobody wants: net/http reads on before it answers, whatever the
// answer is. The bound is over when the body has ended (net/http sees to that), so the call itself may last as long as it
// likes.
func boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestLimit)) // fails on a connection that has gone
	}
}

// countConn refuses connections above the limit, so that file descriptors are left for peers and the disk (C25).
func (n *Node) countConn(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if n.conns.Add(1) > int64(n.config.MaxConns) {
			n.metrics.connsRefused.Inc()
			c.Close()
		}
	case http.StateClosed, http.StateHijacked:
		n.conns.Add(-1)
	}
}

// guard refuses what only a web page in somebody's browser sends: a foreign origin, or on a loopback listener a foreign
// host name (DNS rebinding).
func guard(r *http.Request) error {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return transport.NewError(transport.ErrForbidden, "requests from other sites' pages are refused")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return transport.NewError(transport.ErrForbidden, "requests from other sites' pages are refused")
		}
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && loopback(local.String()) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !loopback(net.JoinHostPort(strings.Trim(host, "[]"), "0")) {
			return transport.NewError(transport.ErrForbidden, "this node listens on loopback only and does not answer to the name %s", quote(host))
		}
	}
	return nil
}

// serve is the one choke point that every request passes, from a client or from a follower: bound, check, pass on or run,
// answer, measure.
func (n *Node) serve(w http.ResponseWriter, r *http.Request, forwarded bool) {
	boundBody(w, r)
	c := &call{Context: r.Context(), request: r, forwarded: forwarded}
	began, watched := time.Now(), &statusWriter{w, http.StatusOK}
	w = watched
	defer func() { n.metrics.answered(c, watched.status, time.Since(began)) }()
	defer n.recovered(w, c)
	out, err := n.run(w, c)
	if errors.Is(err, errAnswered) {
		return
	}
	n.answer(w, c, out, err)
	n.log.Trace("request", "method", r.Method, "path", r.URL.Path, "status", out.status, "error", err, "took", time.Since(began))
}

// errAnswered says that the answer of another node was passed through.
var errAnswered = errors.New("answered")

func (n *Node) run(w http.ResponseWriter, c *call) (reply, error) {
	if !c.forwarded {
		if err := guard(c.request); err != nil {
			return reply{}, err
		}
	}
	// As it was sent: an escaped spelling of a path is another path, here as on the node that it would be passed on to.
	path := c.request.URL.EscapedPath()
	methods, found := routes[path]
	if !found {
		return reply{}, transport.NewError(transport.ErrNotFound, "there is no %s", quote(path))
	}
	route, found := methods[c.request.Method]
	if !found {
		allowed := make([]string, 0, len(methods))
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return reply{}, transport.NewError(transport.ErrMethodNotAllowed, "%s takes %s", path, strings.Join(allowed, ", "))
	}
	if err := n.read(w, c); err != nil {
		return reply{}, err
	}
	c.reads = route.reads || c.request.Method == http.MethodGet
	run, err := route.parse(n, c)
	if err != nil {
		return reply{}, err
	}
	if n.stopping() && !route.here {
		return reply{}, transport.NewError(transport.ErrShuttingDown, "this node is stopping")
	}
	for {
		out, err := n.try(w, c, route, run)
		if !n.again(c, err) {
			n.leave(c, err)
			return out, c.standIn.lastWord(err)
		}
	}
}

// try carries a request out, here or at the leader.
func (n *Node) try(w http.ResponseWriter, c *call, route route, run handler) (reply, error) {
	if !route.here && c.query.Get("consistency") != "stale" && n.leader.Load() == nil {
		leads, err := n.passOn(w, c)
		if !leads {
			return reply{}, err
		}
	}
	return run(c)
}

// read takes the body and the query, within their bounds.
func (n *Node) read(w http.ResponseWriter, c *call) (err error) {
	r := c.request
	if c.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return transport.NewError(transport.ErrInvalid, "the query is not well-formed")
	}
	switch keys := r.Header.Values(transport.HeaderIdempotencyKey); {
	case len(keys) > 1:
		return badField(transport.HeaderIdempotencyKey, "is given more than once")
	case len(keys) == 1 && keys[0] == "":
		return badField(transport.HeaderIdempotencyKey, "is empty") // not the same as none: somebody's variable was not set
	case len(keys) == 1:
		c.key = keys[0]
	}
	if r.Method != http.MethodPost {
		return nil
	}
	if strings.Join(r.Header.Values("Content-Encoding"), "") != "" {
		return transport.NewError(transport.ErrUnsupportedMedia, "bodies are not to be compressed")
	}
	if t := strings.Join(r.Header.Values("Content-Type"), ", "); t != "" {
		// curl -d sends the form type unless told otherwise.
		media, parameters, err := mime.ParseMediaType(t)
		charset, given := parameters["charset"]
		if err != nil || (media != transport.TypeJSON && media != "application/x-www-form-urlencoded") || (given && !strings.EqualFold(charset, "utf-8")) {
			return transport.NewError(transport.ErrUnsupportedMedia, "the body must be %s", transport.TypeJSON)
		}
	}
	if r.ContentLength > transport.MaxBody { // before it is sent at all, when the sender waits to be told to go on
		w.Header().Set("Connection", "close")
		return transport.NewError(transport.ErrTooLarge, "the body has more than %d bytes", transport.MaxBody)
	}
	if c.body, err = transport.ReadBody(r.Body); err != nil {
		w.Header().Set("Connection", "close") // the rest is not read
		return err
	}
	return nil
}

// answer writes what a handler said, with the headers that every answer has.
func (n *Node) answer(w http.ResponseWriter, c *call, out reply, err error) {
	n.setHeaders(w.Header(), c.index)
	if err != nil {
		var wire *transport.Error
		if !errors.As(err, &wire) {
			wire = n.internal(c, err)
		}
		n.fault(w, wire)
		return
	}
	if write, ok := out.body.(stream); ok {
		c.streams = true
		write(w)
		return
	}
	body, plain := out.body.(text)
	if !plain {
		if body.bytes, err = json.Marshal(out.body); err != nil {
			n.fault(w, n.internal(c, err))
			return
		}
		body.content, body.bytes = transport.TypeJSON, append(body.bytes, '\n')
	}
	w.Header().Set("Content-Type", body.content)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body.bytes)))
	w.WriteHeader(out.status)
	_, _ = w.Write(body.bytes) // who has gone is not told
}

// fault answers with an error, and counts it.
func (n *Node) fault(w http.ResponseWriter, e *transport.Error) {
	n.metrics.errors.WithLabelValues(string(e.Code)).Inc()
	transport.WriteError(w, e)
}

func (n *Node) setHeaders(h http.Header, index uint64) {
	if cluster := n.cluster(); cluster != "" {
		h.Set(transport.HeaderCluster, cluster)
	}
	h.Set(transport.HeaderNode, n.config.Name)
	var leads, url string
	n.machine.Read(func(s *fsm.State) {
		if index == 0 {
			index = s.Index()
		}
		leads, url = s.Leader()
	})
	h.Set(transport.HeaderIndex, strconv.FormatUint(index, 10))
	// The state says who led last; only when Raft agrees is it worth telling.
	if name, _ := n.leaderNode(); name != "" && name == leads && url != "" {
		h.Set(transport.HeaderLeader, url)
	}
}

// internal logs what nobody foresaw and gives the client a number to ask about instead of the text.
func (n *Node) internal(c *call, err error) *transport.Error {
	var b [8]byte
	rand.Read(b[:])
	e := transport.NewError(transport.ErrInternal, "an error inside the node; its log has the details")
	e.ID = hex.EncodeToString(b[:])
	n.log.Error("internal error", "id", e.ID, "path", c.request.URL.Path, "error", err)
	return e
}

func (n *Node) recovered(w http.ResponseWriter, c *call) {
	if p := recover(); p != nil {
		if p == http.ErrAbortHandler {
			panic(p)
		}
		n.answer(w, c, reply{}, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
	}
}

// quote shows a text of the client's in an answer, cut short.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToGraphic(s)
}

func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, transport.MaxBody)
	_ = body.Close()
}
