package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// api is a cluster under test with what a script of calls has learnt from it.
type api struct {
	*pawltest.Cluster
	t      *testing.T
	client *http.Client
	vars   map[string]string // captured by patterns, put into later calls as ${name}
	quiet  bool              // without a leader: its headers are not expected
}

// apiBubble runs a test against a cluster in virtual time; a goroutine that is left behind fails it.
func apiBubble(t *testing.T, options pawltest.Options, test func(*api)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := pawltest.New(t, options)
		defer c.Close()
		c.WaitReady()
		a := newAPI(t, c)
		defer a.client.CloseIdleConnections()
		test(a)
	})
}

func newAPI(t *testing.T, c *pawltest.Cluster) *api {
	client := c.ClientAt("caller")
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &api{Cluster: c, t: t, client: client, vars: map[string]string{}}
}

// step is one call and what must be answered.
type step struct {
	call   string // "POST /v1/acquire"
	body   string
	header []string // names and values
	status int
	want   string // pattern of the body, see match
}

// tables runs the steps through each node in turn, and once with every step through another node.
func (a *api) tables(steps []step) {
	a.t.Helper()
	for entry := range a.Size() {
		clear(a.vars)
		for _, s := range steps {
			a.step(entry, s)
		}
	}
	clear(a.vars)
	for i, s := range steps {
		a.step(i%a.Size(), s)
	}
}

// step sends one call to a node and checks everything about the answer.
func (a *api) step(node int, s step) pawltest.Answer {
	a.t.Helper()
	method, path, _ := strings.Cut(a.fill(s.call), " ")
	answer, err := a.send(context.Background(), node, method, path, a.fill(s.body), s.header...)
	if err != nil {
		a.t.Fatalf("%s to %s: %v", a.what(s), a.Name(node), err)
	}
	a.check(node, s, answer)
	if err := undescribed(exchange{method, path, a.fill(s.body), s.header, answer}); err != nil {
		a.t.Errorf("%s %v to %s: the API is described otherwise: %v", a.what(s), s.header, a.Name(node), err)
	}
	return answer
}

func (a *api) what(s step) string { return short(a.fill(s.call)) + " " + short(a.fill(s.body)) }

func short(text string) string {
	if len(text) > 160 {
		return text[:160] + "…"
	}
	return text
}

func (a *api) check(node int, s step, answer pawltest.Answer) {
	a.t.Helper()
	failed := func(format string, args ...any) {
		a.t.Helper()
		a.t.Errorf("%s %v to %s: %s\nanswer %d %s", a.what(s), s.header, a.Name(node), fmt.Sprintf(format, args...), answer.Status, short(string(answer.Body)))
	}
	if answer.Status != s.status {
		failed("status %d, want %d", answer.Status, s.status)
		return
	}
	for _, problem := range a.headers(answer) {
		failed("%s", problem)
	}
	want := a.fill(s.want)
	if answer.Header.Get("Content-Type") == transport.TypeProblem {
		want = problemPattern(a.t, want, answer.Status)
	}
	if problem := matchJSON(want, answer.Body, a.vars); problem != "" {
		failed("%s", problem)
	}
}

// headers checks those that every answer has (api.md, "Rules for all of it").
func (a *api) headers(answer pawltest.Answer) (problems []string) {
	h := answer.Header
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	for _, name := range []string{transport.HeaderCluster, transport.HeaderNode, transport.HeaderIndex, "Content-Type", "Cache-Control"} {
		refuse(len(h[name]) != 1, "header %s is given %d times", name, len(h[name]))
	}
	refuse(h.Get(transport.HeaderCluster) == "" || h.Get(transport.HeaderCluster) != a.cluster(), "cluster %q", h.Get(transport.HeaderCluster))
	index, err := strconv.ParseUint(h.Get(transport.HeaderIndex), 10, 64)
	refuse(err != nil || index == 0, "index %q", h.Get(transport.HeaderIndex))
	refuse(!a.quiet && !slices.Contains(a.URLs(), h.Get(transport.HeaderLeader)), "leader %q", h.Get(transport.HeaderLeader))
	refuse(h.Get("Location") != "" || answer.Status/100 == 3, "a redirect to %q", h.Get("Location"))
	if token, granted := answer.Field("token").(float64); granted {
		// The base is 0 in these tests, so a token is an index (R10).
		refuse(float64(index) < token, "index %d is before token %v, which the answer shows", index, token)
	}
	problem := h.Get("Content-Type") == transport.TypeProblem
	refuse(!problem && h.Get("Content-Type") != transport.TypeJSON, "content type %q", h.Get("Content-Type"))
	refuse(problem != (answer.Status >= 400) && answer.Field("ok") == nil, "content type %q of status %d", h.Get("Content-Type"), answer.Status)
	retry, _ := answer.Field("retry_after_ms").(float64)
	refuse((retry > 0) != (h.Get("Retry-After") != ""), "Retry-After %q with retry_after_ms %v", h.Get("Retry-After"), retry)
	refuse(answer.Status == 503 && problem && retry <= 0, "503 without retry_after_ms")
	refuse((answer.Status == 405) != (h.Get("Allow") != ""), "Allow %q", h.Get("Allow"))
	return problems
}

// cluster is the cluster's id, asked for once.
func (a *api) cluster() string {
	if id := a.vars["#cluster"]; id != "" {
		return id
	}
	answer, err := a.send(context.Background(), a.alive(), "GET", "/v1/cluster?consistency=stale", "")
	if err != nil {
		a.t.Fatal(err)
	}
	a.vars["#cluster"], _ = answer.Field("id").(string)
	return a.vars["#cluster"]
}

func (a *api) alive() int {
	for i := range a.Size() {
		if a.Node(i) != nil {
			return i
		}
	}
	a.t.Fatal("no node runs")
	return -1
}

// send sends one request as it is written: paths are not cleaned, and header fields may be repeated.
func (a *api) send(ctx context.Context, node int, method, path, body string, header ...string) (pawltest.Answer, error) {
	return sendTo(ctx, a.client, a.URL(node), method, path, strings.NewReader(body), header...)
}

// sendTo does so to any base URL, with any body.
func sendTo(ctx context.Context, client *http.Client, base, method, path string, body io.Reader, header ...string) (pawltest.Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return pawltest.Answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Add(header[i], header[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return pawltest.Answer{}, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return pawltest.Answer{Status: response.StatusCode, Header: response.Header, Body: b}, err
}

// fill puts captured values in the place of ${name}; ${name.short} is its first eight characters.
func (a *api) fill(text string) string {
	for name, value := range a.vars {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
		if len(value) >= 8 {
			text = strings.ReplaceAll(text, "${"+name+".short}", value[:8])
		}
	}
	return text
}

// problemPattern completes the pattern of an error with the fields that every one has.
func problemPattern(t *testing.T, want string, status int) string {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(want), &fields); err != nil {
		t.Fatalf("pattern %s: %v", want, err)
	}
	code, _ := fields["code"].(string)
	row, known := transport.Code(code).Describe()
	if !known {
		return want // the pattern is of an answer that is no error
	}
	defaults := map[string]any{
		"type": "urn:pawl:error:" + code, "title": row.Title, "status": float64(status), "detail": "<text>", "applied": string(row.Applied),
	}
	if row.RetryAfterMS > 0 {
		defaults["retry_after_ms"] = float64(row.RetryAfterMS)
	}
	maps.Copy(defaults, fields)
	b, _ := json.Marshal(defaults)
	return string(b)
}

// matchJSON compares a body with a pattern, JSON in which a text "<kind>" stands for any value of a kind and
// "<kind:name>" captures it. Fields that the pattern does not have are refused: the wire has what api.md says and no more.
// It returns what is wrong.
func matchJSON(pattern string, body []byte, vars map[string]string) string {
	var want, got any
	if err := json.Unmarshal([]byte(pattern), &want); err != nil {
		return fmt.Sprintf("pattern %s: %v", pattern, err)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&got); err != nil {
		return fmt.Sprintf("the body is no JSON: %v", err)
	}
	if rest, _ := io.ReadAll(d.Buffered()); len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Sprintf("the body has %q after its object", rest)
	}
	return match("", want, got, vars)
}

// kinds are what a pattern may ask for, as the value is written.
var kinds = map[string]*regexp.Regexp{
	"session": regexp.MustCompile(`^[0-9a-f]{32}$`),
	"short":   regexp.MustCompile(`^[0-9a-f]{8}$`),
	"text":    regexp.MustCompile(`(?s)^.+$`),
	"number":  regexp.MustCompile(`^(0|[1-9][0-9]*)$`),
	"token":   regexp.MustCompile(`^[1-9][0-9]{0,15}$`),
}

var placeholder = regexp.MustCompile(`^<(\w+)(?::(\w+))?>$`)

func match(path string, want, got any, vars map[string]string) string {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is %v, want an object", path, got)
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if _, known := want[name]; !known {
				return fmt.Sprintf("%s.%s is not expected", path, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			value, given := object[name]
			if !given {
				return fmt.Sprintf("%s.%s is missing", path, name)
			}
			if problem := match(path+"."+name, want[name], value, vars); problem != "" {
				return problem
			}
		}
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Sprintf("%s is %v, want %d elements", path, got, len(want))
		}
		for i := range want {
			if problem := match(fmt.Sprintf("%s[%d]", path, i), want[i], list[i], vars); problem != "" {
				return problem
			}
		}
	case string:
		if p := placeholder.FindStringSubmatch(want); p != nil {
			if list, ok := got.([]any); p[1] == "list" && ok && list != nil {
				return ""
			}
			text := fmt.Sprint(got)
			_, isText := got.(string)
			numeric := p[1] == "number" || p[1] == "token"
			if kinds[p[1]] == nil || isText == numeric || !kinds[p[1]].MatchString(text) {
				return fmt.Sprintf("%s is %v, want %s", path, got, want)
			}
			if p[2] != "" {
				vars[p[2]] = text
			}
			return ""
		}
		if got != want {
			return fmt.Sprintf("%s is %v, want %q", path, got, want)
		}
	case float64:
		if n, ok := got.(json.Number); !ok || n.String() != strconv.FormatFloat(want, 'f', -1, 64) {
			return fmt.Sprintf("%s is %v, want %v", path, got, want)
		}
	default:
		if got != want {
			return fmt.Sprintf("%s is %v, want %v", path, got, want)
		}
	}
	return ""
}

// place is where a node stands: the index of its state, and how far each member is behind the log.
func (a *api) place(node int) (index float64) {
	a.t.Helper()
	answer, err := a.send(context.Background(), node, "GET", "/v1/cluster?consistency=stale", "")
	if err != nil || answer.Status != 200 {
		a.t.Fatalf("cluster of %s: %v %d %s", a.Name(node), err, answer.Status, answer.Body)
	}
	var cluster transport.ClusterResponse
	answer.Into(a.t, &cluster)
	for _, m := range cluster.Members {
		if m.Lag != 0 {
			a.t.Errorf("%s is %d entries behind what is committed", m.Name, m.Lag)
		}
	}
	return float64(cluster.Index)
}

// costs runs f and checks how many log entries it made, on every node.
func (a *api) costs(entries int, what string, f func()) {
	a.t.Helper()
	before := a.settled()
	f()
	if after := a.settled(); after-before != float64(entries) {
		a.t.Errorf("%s: %v log entries, want %d", what, after-before, entries)
	}
}

// settled waits until every node has applied the same, and returns the index.
func (a *api) settled() float64 {
	a.t.Helper()
	synctest.Wait()
	for {
		first := -1.0
		same := true
		for i := range a.Size() {
			if a.Node(i) == nil {
				continue
			}
			at := a.appliedAt(i)
			same = same && (first < 0 || at == first)
			first = max(first, at)
		}
		if same {
			for i := range a.Size() {
				if a.Node(i) != nil && a.place(i) != first {
					same = false
				}
			}
		}
		if same {
			return first
		}
	}
}

// appliedAt is the index of a node's state.
func (a *api) appliedAt(node int) float64 {
	a.t.Helper()
	answer, err := a.send(context.Background(), node, "GET", "/livez", "")
	if err != nil {
		a.t.Fatal(err)
	}
	index, err := strconv.ParseFloat(answer.Header.Get(transport.HeaderIndex), 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return index
}

func replaceAll(text string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(text)
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func quoted(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

func escaped(text string) string { return url.QueryEscape(text) }
