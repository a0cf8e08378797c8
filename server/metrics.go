package server

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// metrics are a node's figures for its operator, told at GET /metrics. Every label has few values that the program itself
// knows (routes, codes, kinds): never a name, owner, session or token, of which there is no end (F06, E08). What is set is
// told from the start, as 0.
//
// The state machine's figures are of what this node applied, so every node has the same of the same entries: they are not
// to be added up over nodes.
type metrics struct {
	registry *prometheus.Registry
	applied  *appliedMetrics

	requests       *prometheus.CounterVec
	requestSeconds *prometheus.HistogramVec
	errors         *prometheus.CounterVec
	renewalLeft    prometheus.Histogram
	queueFull      prometheus.Counter
	connsRefused   prometheus.Counter
	readersCut     prometheus.Counter
	peerFailures   *prometheus.CounterVec

	applySeconds    prometheus.Histogram
	writeSeconds    *prometheus.HistogramVec
	snapshots       *prometheus.CounterVec
	snapshotSeconds prometheus.Histogram
}

// otherRoute is the route of what is no path of the API.
const otherRoute = "other"

// Calls between nodes beside Raft's own.
const (
	peerAsk     = "ask"
	peerForward = "forward"
)

func newMetrics(n *Node) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), nodeFigures{n},
	)
	m.requests = m.counters("pawl_requests_total", "Requests that were answered, by route, HTTP status and who sent them: a client, or another node that passed a client's on.", "route", "code", "from")
	m.requestSeconds = m.histograms("pawl_request_seconds", "From a client's request to its answer, its wait for a lock included.", []float64{.001, .005, .01, .025, .1, .5, 2, 10}, "route")
	m.errors = m.counters("pawl_errors_total", "Errors that this node answered, by their code; those that it passed on from the leader are counted there.", "code")
	m.renewalLeft = m.histogram("pawl_renewal_left_ratio", "How much of its TTL a session had left when its renewal came to this leader: low is late.", []float64{.1, .25, .4, .5, .6, .75, .9})
	m.queueFull = m.counter("pawl_proposals_refused_total", "Requests refused because too many waited for the log.")
	m.connsRefused = m.counter("pawl_connections_refused_total", "Connections to the API port closed at once because there were too many.")
	m.readersCut = m.counter("pawl_event_readers_cut_total", "Readers of events cut off because they were too slow.")
	m.peerFailures = m.counters("pawl_peer_failures_total", "Calls to other nodes that had no answer, or a refusal: Raft's, and those of Pawl's own.", "call")
	m.applySeconds = m.histogram("pawl_apply_seconds", "Time that the state machine took for one entry.", []float64{.0001, .0005, .001, .0025, .005, .01, .05, .25})
	m.writeSeconds = m.histograms("pawl_write_seconds", "Time of one write to the log store, its flush to the disk included.", []float64{.0005, .001, .0025, .005, .01, .025, .1, .5, 2}, "what")
	m.snapshots = m.counters("pawl_snapshots_total", "Snapshots that this node made.", "result")
	m.snapshotSeconds = m.histogram("pawl_snapshot_seconds", "Time to write a snapshot.", []float64{.01, .1, 1, 10})
	m.applied = newAppliedMetrics(m)

	for path := range routes {
		m.requestSeconds.WithLabelValues(path)
	}
	m.requestSeconds.WithLabelValues(otherRoute)
	for _, code := range transport.Codes() {
		m.errors.WithLabelValues(string(code))
	}
	for _, call := range append(slices.Clone(replica.PeerCalls), peerAsk, peerForward) {
		m.peerFailures.WithLabelValues(call)
	}
	for _, what := range writes {
		m.writeSeconds.WithLabelValues(what)
	}
	for _, result := range []string{"written", "failed"} {
		m.snapshots.WithLabelValues(result)
	}
	return m
}

func (m *metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	return m.counters(name, help).WithLabelValues()
}

func (m *metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return m.histograms(name, help, buckets).WithLabelValues().(prometheus.Histogram)
}

// writes are the words for what the replica writes.
var writes = map[string]string{replica.WritingLog: "append", replica.CuttingLog: "cut", replica.WritingVote: "vote"}

// meter is what the replica tells.
func (m *metrics) meter() replica.Meter {
	return replica.Meter{
		Applied: func(took time.Duration) { m.applySeconds.Observe(took.Seconds()) },
		Wrote: func(what string, took time.Duration) {
			m.writeSeconds.WithLabelValues(writes[what]).Observe(took.Seconds())
		},
		Snapshot: func(_ int64, took time.Duration, err error) {
			if err != nil {
				m.snapshots.WithLabelValues("failed").Inc()
				return
			}
			m.snapshots.WithLabelValues("written").Inc()
			m.snapshotSeconds.Observe(took.Seconds())
		},
		Failed: m.peerFailed,
	}
}

func (m *metrics) peerFailed(call string) { m.peerFailures.WithLabelValues(call).Inc() }

// answered counts a request that came to the choke point. A stream lasts as long as its reader likes, so its time says
// nothing.
func (m *metrics) answered(c *call, status int, took time.Duration) {
	route, from := c.request.URL.EscapedPath(), "client"
	if _, known := routes[route]; !known {
		route = otherRoute
	}
	if c.forwarded {
		from = "node"
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status), from).Inc()
	if !c.forwarded && !c.streams {
		m.requestSeconds.WithLabelValues(route).Observe(took.Seconds())
	}
}

// renewing notes how late a renewal comes.
func (m *metrics) renewing(ttl, left time.Duration) {
	if ttl > 0 {
		m.renewalLeft.Observe(left.Seconds() / ttl.Seconds())
	}
}

// statusWriter remembers with which status a request was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// text is an answer that is no JSON.
type text struct {
	content string // media type
	bytes   []byte
}

// readMetrics is GET /metrics, in the text format that Prometheus and others read.
func (n *Node) readMetrics(*call) (reply, error) {
	families, err := n.metrics.registry.Gather()
	if err != nil {
		return reply{}, fmt.Errorf("gathering metrics: %w", err)
	}
	var b bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&b, family); err != nil {
			return reply{}, fmt.Errorf("writing metrics: %w", err)
		}
	}
	return reply{http.StatusOK, text{string(expfmt.NewFormat(expfmt.TypeTextPlain)), b.Bytes()}}, nil
}

// nodeFigures are what a scrape looks up: it costs nothing in between. All figures of the state are of one moment.
type nodeFigures struct{ node *Node }

// moment is what a scrape saw.
type moment struct {
	node                          *Node
	index                         uint64
	locks, sessions, holds, waits int
	leader                        *leadership
	files                         replica.Files
}

// figure is one of nodeFigures.
type figure struct {
	describes *prometheus.Desc
	kind      prometheus.ValueType
	value     func(*moment) float64
}

func gauge(name, help string, value func(*moment) float64) figure {
	return figure{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value}
}

// figures are in the order of a walk from the cluster to the disk.
var figures = []figure{
	gauge("pawl_leading", "1 while this node is at work as leader.", func(m *moment) float64 { return flag(m.leader != nil) }),
	gauge("pawl_leader_known", "1 while this node knows who leads.", func(m *moment) float64 {
		name, _ := m.node.leaderNode()
		return flag(name != "")
	}),
	gauge("pawl_voter", "1 while this node has a vote.", func(m *moment) float64 { return flag(m.node.votes()) }),
	gauge("pawl_leader_silent_seconds", "How long ago this follower heard from a leader; 0 at the leader, and before it ever did.", func(m *moment) float64 {
		last := m.node.replica.LastContact()
		if m.node.replica.IsLeader() || last.IsZero() {
			return 0
		}
		return time.Since(last).Seconds()
	}),
	gauge("pawl_term", "The newest term that this node has heard of.", func(m *moment) float64 { return float64(m.node.replica.Term()) }),
	gauge("pawl_log_index", "Index of the newest entry in this node's log.", func(m *moment) float64 { return float64(m.node.replica.LastIndex()) }),
	gauge("pawl_commit_index", "Newest index that this node knows to be committed.", func(m *moment) float64 { return float64(m.node.replica.CommitIndex()) }),
	gauge("pawl_applied_index", "Index that the state machine has reached.", func(m *moment) float64 { return float64(m.index) }),

	gauge("pawl_locks", "Locks that are held, waited for or in their lock-delay.", func(m *moment) float64 { return float64(m.locks) }),
	gauge("pawl_holds", "Holds: a lock held by three readers counts three.", func(m *moment) float64 { return float64(m.holds) }),
	gauge("pawl_waits", "Places in the queues of locks.", func(m *moment) float64 { return float64(m.waits) }),
	gauge("pawl_sessions", "Sessions, those of single acquires included.", func(m *moment) float64 { return float64(m.sessions) }),

	gauge("pawl_connections", "Open connections to the API port.", func(m *moment) float64 { return float64(m.node.conns.Load()) }),
	gauge("pawl_waiting_callers", "Callers that wait at this node for a grant.", func(m *moment) float64 { return float64(m.node.hub.count()) }),
	gauge("pawl_event_readers", "Callers that follow events at this node.", func(m *moment) float64 { return float64(m.node.readers.Load()) }),
	gauge("pawl_proposer_commands", "Commands that wait for the leader's next entry; 0 at a follower.", func(m *moment) float64 {
		if m.leader == nil {
			return 0
		}
		return float64(len(m.leader.proposer.commands))
	}),
	gauge("pawl_proposer_renewals", "Renewals that wait for the leader's next entry; 0 at a follower.", func(m *moment) float64 {
		if m.leader == nil {
			return 0
		}
		return float64(len(m.leader.proposer.renewals))
	}),

	gauge("pawl_log_file_bytes", "Size of the log store's file.", func(m *moment) float64 { return float64(m.files.Log) }),
	gauge("pawl_log_free_bytes", "Bytes of that file in free pages.", func(m *moment) float64 { return float64(m.files.Free) }),
	gauge("pawl_log_freelist_bytes", "Size of the list of free pages.", func(m *moment) float64 { return float64(m.files.Freelist) }),
	gauge("pawl_snapshot_bytes", "Size of the newest snapshot; 0 when there is none.", func(m *moment) float64 { return float64(m.files.Snapshot) }),
	gauge("pawl_snapshot_index", "Index up to which the newest snapshot reaches.", func(m *moment) float64 { return float64(m.files.Index) }),
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (f nodeFigures) Describe(to chan<- *prometheus.Desc) {
	for _, figure := range figures {
		to <- figure.describes
	}
}

// Collect implements prometheus.Collector.
func (f nodeFigures) Collect(to chan<- prometheus.Metric) {
	m := moment{node: f.node, leader: f.node.leader.Load(), files: f.node.replica.Files()}
	f.node.machine.Read(func(s *fsm.State) {
		m.index = s.Index()
		m.locks, m.sessions, m.holds, m.waits = s.Counts()
	})
	for _, figure := range figures {
		to <- prometheus.MustNewConstMetric(figure.describes, figure.kind, figure.value(&m))
	}
}

// labelled are the counters of a vector by one label's values, looked up beforehand.
func labelled(v *prometheus.CounterVec, values ...string) map[string]prometheus.Counter {
	out := map[string]prometheus.Counter{}
	for _, value := range values {
		out[value] = v.WithLabelValues(value)
	}
	return out
}
