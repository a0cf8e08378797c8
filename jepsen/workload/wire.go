package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// longestCall bounds one message, beyond what it asks the node to wait.
const longestCall = 4 * time.Second

// anyNode is a node's URL.
func (e *Env) anyNode() string { return e.Client.Endpoints[e.Rand.IntN(len(e.Client.Endpoints))] }

// answer is what a node said.
type answer struct {
	index uint64 // of the log, that it reflects
	node  string
}

// send sends one message once, without the SDK between: what it says is the outcome of this very message. Errors are
// *transport.Error, which says whether it was applied, or anything else, and then nobody knows.
func (e *Env) send(ctx context.Context, url, path string, wait time.Duration, request, into any) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, longestCall+wait)
	defer cancel()
	method := http.MethodGet
	var body io.Reader
	if request != nil {
		data, err := json.Marshal(request)
		if err != nil {
			return answer{}, err
		}
		method, body = http.MethodPost, bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, url+path, body)
	if err != nil {
		return answer{}, err
	}
	response, err := e.Client.HTTP.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	index, _ := strconv.ParseUint(response.Header.Get(transport.HeaderIndex), 10, 64)
	a := answer{index: index, node: response.Header.Get(transport.HeaderNode)}
	if response.StatusCode/100 != 2 {
		return a, transport.ReadError(response)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return a, fmt.Errorf("reading the answer: %w", err)
	}
	return a, nil
}

// refused says whether a message was surely not applied, and never will be.
func refused(err error) bool {
	var refusal *transport.Error
	if errors.As(err, &refusal) {
		return refusal.Applied == transport.AppliedNo
	}
	var connection *net.OpError // one that was never made carried nothing
	return errors.As(err, &connection) && connection.Op == "dial"
}
