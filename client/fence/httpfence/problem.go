package httpfence

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/transport"
)

// The codes of refusals, words that never change.
const (
	codeStale     = "stale_stamp"
	codeUnstamped = "stamp_required"
	codeInvalid   = "invalid"
	codeTooLarge  = "too_large"
	codeInternal  = "internal"
)

// problem is a refusal as RFC 9457 problem details.
type problem struct {
	Type    string     `json:"type"`
	Title   string     `json:"title"`
	Status  int        `json:"status"`
	Detail  string     `json:"detail,omitempty"`
	Code    string     `json:"code"`
	Offered *wireStamp `json:"offered,omitempty"` // of codeStale
	Newest  *wireStamp `json:"newest,omitempty"`
}

// wireStamp has no bounds: a mark need not be a stamp that could be offered.
type wireStamp struct {
	Token    uint64 `json:"token"`
	Sequence uint64 `json:"sequence,omitempty"`
	Shared   bool   `json:"shared,omitempty"`
}

func staleProblem(err *fence.StaleError) problem {
	offered, newest := wireStamp(err.Offered), wireStamp(err.Newest)
	return problem{Status: http.StatusPreconditionFailed, Code: codeStale, Title: "Stale stamp", Detail: err.Error(),
		Offered: &offered, Newest: &newest}
}

func writeProblem(w http.ResponseWriter, p problem) {
	p.Type = "urn:pawl:fence:" + p.Code
	w.Header().Set("Content-Type", transport.TypeProblem)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // nobody is left to tell
}

// maxProblem bounds what is read of a refusal, in bytes: anybody may have written it.
const maxProblem = 64 << 10

// Refused gives the *fence.StaleError of an answer that refuses the stamp, and nil for any other
// answer (also for a 412 that is not this package's). For a 412 it reads the body, without closing
// it.
func Refused(response *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode != http.StatusPreconditionFailed || mediaType != transport.TypeProblem {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	var p problem
	if err != nil || json.Unmarshal(body, &p) != nil || p.Code != codeStale || p.Offered == nil || p.Newest == nil {
		return nil
	}
	return &fence.StaleError{Offered: fence.Stamp(*p.Offered), Newest: fence.Stamp(*p.Newest)}
}
