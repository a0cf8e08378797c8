package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// leaderNode names the node that Raft believes to lead, and its Raft address; "" when there is none. It is a hint.
func (n *Node) leaderNode() (name, address string) {
	id, address := n.replica.Leader()
	if id == "" {
		return "", ""
	}
	identity, err := peer.ParseIdentity(id)
	if err != nil {
		return "", ""
	}
	return identity.Name, address
}

// passOn hands a request to the leader and its answer through to the caller (errAnswered). It reports leads when this
// node turns out to be at work as leader itself. A request is passed on once: one that came from a follower is answered
// here, so two nodes that take each other for the leader cannot make a loop (D01).
func (n *Node) passOn(w http.ResponseWriter, c *call) (leads bool, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c, leaderWait)
	defer cancel()
	var name, address string
	known := func() bool {
		name, address = n.leaderNode()
		return n.leader.Load() != nil || n.stopping() || (address != "" && name != n.config.Name && !c.forwarded)
	}
	if c.standIn == nil || !c.standIn.handed {
		n.poll(ctx, known)
	} else {
		known() // it comes again; thousands that look every few milliseconds would be in the way of the election
	}
	switch {
	case n.leader.Load() != nil:
		return true, nil
	case n.stopping():
		return false, transport.NewError(transport.ErrShuttingDown, "this node is stopping")
	case c.forwarded || address == "" || name == n.config.Name:
		return false, n.notLeading()
	}
	hostport, incarnation, err := peer.SplitAddress(address)
	if err != nil {
		return false, err
	}
	whole, letGo := n.whileServing(c)
	defer letGo()
	switch {
	case c.reads:
		// Nothing is lost when a read is given up, so a leader that was just cut off is not waited for (D01). A change is:
		// whoever gives that up knows nothing.
		limited, cancel := context.WithDeadline(whole, began.Add(passedReadLimit))
		defer cancel()
		whole = limited
	case strings.HasPrefix(c.request.URL.Path, "/v1/cluster/"):
		// Who hands over tells of it when another leads.
	default:
		limited, letGo := n.untilFollowed(whole, name, c.standIn != nil)
		defer letGo()
		whole = limited
	}
	response, err := n.forward(whole, c, hostport, incarnation)
	if err != nil {
		return false, n.forwardError(c, err)
	}
	defer drain(response.Body)
	if c.standIn != nil {
		if err := wholeAnswer(response); err != nil {
			return false, err
		}
		if c.Err() != nil {
			return false, callerGone() // whatever it says: what was granted is taken back
		}
	}
	for _, h := range passedHeaders {
		if v := response.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(response.StatusCode)
	if _, err := io.Copy(w, io.LimitReader(response.Body, maxForwarded)); err != nil {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
	return false, errAnswered
}

// passedReadLimit bounds a read that is passed on, from its arrival to the end of its answer.
const passedReadLimit = 1900 * time.Millisecond

// maxForwarded bounds the answer that is passed through, in bytes.
const maxForwarded = 16 << 20

// passedHeaders are those of the leader's answer that reach the caller.
var passedHeaders = []string{
	"Content-Type", "Content-Length", "Cache-Control", "Retry-After", "Allow",
	transport.HeaderCluster, transport.HeaderNode, transport.HeaderIndex, transport.HeaderLeader,
}

// forwardGrace is how long a node that stops still waits for the leader's answers. Those that are on their way come; long
// polls would hold it up.
const forwardGrace = 1 * time.Second

// whileServing gives a context that ends with the call's, and a moment after this node has begun to stop. Then the leader
// sees the caller go: it keeps a place that can be asked for again, and takes any other wait back (R14).
func (n *Node) whileServing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unbind := context.AfterFunc(n.serving, func() { cancel(errStopping) })
	return ctx, func() {
		unbind()
		cancel(nil)
	}
}

func (n *Node) forward(ctx context.Context, c *call, hostport, incarnation string) (*http.Response, error) {
	u := *c.request.URL
	u.Scheme, u.Host = "http", hostport
	out, err := http.NewRequestWithContext(ctx, c.request.Method, u.String(), bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	if len(c.body) > 0 {
		out.Header.Set("Content-Type", transport.TypeJSON)
	}
	out.Header.Set(transport.HeaderForwarded, n.config.Name)
	out.Header.Set(transport.HeaderClient, c.clientIP())
	for _, h := range []string{transport.HeaderIdempotencyKey, "Traceparent"} {
		if v := c.request.Header.Get(h); v != "" {
			out.Header.Set(h, v)
		}
	}
	if c.standIn != nil {
		out.Header.Set(transport.HeaderWait, c.standIn.header())
	}
	response, err := n.port.HTTPClient(hostport, incarnation).Do(out)
	if err != nil && c.Err() == nil { // else the caller has gone
		n.metrics.peerFailed(peerForward)
	}
	return response, err
}

// wholeAnswer reads an answer before any of it is passed through. It returns what a repeat may put right as an error.
func wholeAnswer(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxForwarded))
	if err != nil {
		return transport.NewError(transport.ErrUnknownOutcome, "the leader's answer broke off")
	}
	drain(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	if response.StatusCode/100 == 2 {
		return nil
	}
	problem := transport.ReadError(response)
	response.Body = io.NopCloser(bytes.NewReader(body))
	if definite(problem) && problem.Code != transport.ErrFinished {
		return nil
	}
	return problem
}

// forwardError says what became of a request that the leader gave no answer to: nothing, when no connection was had or
// it only reads; else nobody knows.
func (n *Node) forwardError(c *call, err error) error {
	var dial *peer.DialError
	if c.reads || errors.As(err, &dial) {
		return transport.NewError(transport.ErrNoLeader, "the leader cannot be reached from this node")
	}
	return transport.NewError(transport.ErrUnknownOutcome, "the leader gave no answer: repeat the request with the same number or key")
}

// peerHandler serves node-to-node HTTP, behind the handshake: forwarded requests, and what nodes ask each other.
func (n *Node) peerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /peer/identity", peerJSON(n.identity))
	mux.HandleFunc("GET /peer/term", peerJSON(n.term))
	mux.HandleFunc("POST /peer/promise", peerJSON(n.promise))
	mux.HandleFunc("POST /peer/join", peerJSON(n.join))
	mux.HandleFunc("POST /peer/probe", peerJSON(n.probe))
	mux.HandleFunc("POST /peer/farewell", peerJSON(n.farewell))
	mux.HandleFunc("GET /peer/digest", peerJSON(n.digestOf))
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) { n.serve(w, r, true) })
	return mux
}

// termAnswer is a voter's answer to a read round; Nonce repeats the question's.
type termAnswer struct {
	Term  uint64 `json:"term"`
	Nonce string `json:"nonce"`
}

func (n *Node) term(r *http.Request, _ *struct{}) (*termAnswer, error) {
	return &termAnswer{Term: n.replica.Term(), Nonce: r.URL.Query().Get("nonce")}, nil
}

// askTerm asks a voter for its term, with a fresh nonce: an answer counts only for the question it was given to (R15).
func (n *Node) askTerm(ctx context.Context, voter replica.Server) (uint64, error) {
	nonce := peer.NewIncarnation()
	var out termAnswer
	if err := n.ask(ctx, voter.Address, http.MethodGet, "/peer/term?nonce="+nonce, nil, &out); err != nil {
		return 0, err
	}
	if out.Nonce != nonce {
		return 0, errors.New("the answer is to another question")
	}
	return out.Term, nil
}

// linearizable proves that this node still leads and that its state has everything that was acknowledged before now.
func (n *Node) linearizable(ctx context.Context) error {
	l := n.leader.Load()
	if l == nil {
		return n.notLeading()
	}
	commit, err := l.rounds.Join(ctx)
	if err != nil {
		return n.notLeading()
	}
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	// What is committed is applied within microseconds, unless this node is overloaded.
	if !n.poll(ctx, func() bool { return n.machine.Seen() >= commit }) {
		return transport.NewError(transport.ErrOverloaded, "this node is behind with applying the log")
	}
	return nil
}

// clock estimates the lease clock now, for showing: on the leader it is exact, elsewhere it is that of the last entry.
func (n *Node) clock(s *fsm.State) uint64 {
	need := s.Schedule()
	if l := n.leader.Load(); l != nil && l.begin == need.Begin {
		if e := uint64(time.Since(l.proposer.since).Milliseconds()); e > need.Elapsed {
			return need.Clock + e - need.Elapsed
		}
	}
	return need.Clock
}
