package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/pawl-lock/pawl/client/fence"
)

// Header carries the stamp, as fence.Stamp.String writes it.
const Header = "Pawl-Stamp"

// Unstamped is what to do with a write that carries no stamp. There is no default: one would be too
// strict while callers are converted, the other protects nothing.
type Unstamped int

// The two policies.
const (
	RefuseUnstamped Unstamped = iota + 1 // with 428
	// PassUnstamped runs the handler outside the store: whoever omits the header is not fenced, and
	// the handler finds no transaction.
	PassUnstamped
)

// DefaultMaxBody bounds bodies, in bytes, where Config does not.
const DefaultMaxBody = 1 << 20

// Config configures New.
type Config struct {
	Store fence.Store
	// Name gives what the request writes to: requests with one name are compared with one mark. An
	// empty name is refused with 400.
	Name      func(*http.Request) string
	Unstamped Unstamped
	MaxBody   int64        // of a request, and of an answer, in bytes; both are held in memory. 0 is DefaultMaxBody
	Log       *slog.Logger // for the errors of the store, which callers do not see; nil is slog.Default()
}

// New makes the middleware. Its errors name the setting that is missing.
func New(c Config) (func(http.Handler) http.Handler, error) {
	switch {
	case c.Store == nil:
		return nil, errors.New("httpfence: a Store is needed")
	case c.Name == nil:
		return nil, errors.New("httpfence: Name is needed")
	case c.Unstamped != RefuseUnstamped && c.Unstamped != PassUnstamped:
		return nil, errors.New("httpfence: Unstamped must be RefuseUnstamped or PassUnstamped")
	case c.MaxBody < 0:
		return nil, errors.New("httpfence: MaxBody must not be negative")
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, next) })
	}, nil
}

func (c *Config) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		next.ServeHTTP(w, r)
		return
	}
	values := r.Header.Values(Header)
	if len(values) == 0 && c.Unstamped == PassUnstamped {
		next.ServeHTTP(w, r)
		return
	}
	if len(values) == 0 {
		writeProblem(w, problem{Status: http.StatusPreconditionRequired, Code: codeUnstamped, Title: "A stamp is required",
			Detail: "send the stamp of the lock that you hold in the header " + Header})
		return
	}
	stamp, err := fence.Parse(values[0])
	if err != nil || len(values) > 1 { // of two stamps, either may be the wrong one
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: codeInvalid, Title: "Not a stamp",
			Detail: Header + " must be there once, like 41.7 or 41.s"})
		return
	}
	name := c.Name(r)
	if name == "" {
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: codeInvalid, Title: "Nothing to write to",
			Detail: "the request does not say what it writes to"})
		return
	}
	// Before the step begins: in it, a caller that was suspended while it sends would keep all
	// others waiting.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.MaxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		writeProblem(w, problem{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Title: "Too large",
			Detail: fmt.Sprintf("at most %d bytes", c.MaxBody)})
		return
	}
	if err != nil {
		writeProblem(w, problem{Status: http.StatusBadRequest, Code: codeInvalid, Title: "The body could not be read"})
		return
	}
	answer := &answer{header: make(http.Header), limit: c.MaxBody}
	err = c.Store(r.Context(), name, stamp, func(ctx context.Context) error {
		inside := r.WithContext(fence.WithStamp(ctx, stamp))
		inside.Body = io.NopCloser(bytes.NewReader(body))
		inside.ContentLength = int64(len(body))
		defer func() {
			if inside.MultipartForm != nil { // net/http does this for its own request only
				_ = inside.MultipartForm.RemoveAll()
			}
		}()
		next.ServeHTTP(answer, inside)
		return answer.failure()
	})
	var stale *fence.StaleError
	switch {
	case err == nil || errors.Is(err, errRefused):
		answer.sendTo(w)
	case errors.As(err, &stale):
		writeProblem(w, staleProblem(stale))
	default:
		c.Log.ErrorContext(r.Context(), "a fenced write failed", "name", name, "stamp", stamp.String(), "error", err)
		writeProblem(w, problem{Status: http.StatusInternalServerError, Code: codeInternal, Title: "Internal error",
			Detail: "it is not known whether the write was done"})
	}
}

var (
	errRefused     = errors.New("httpfence: the handler refused")
	errLargeAnswer = errors.New("httpfence: the handler's answer is too large")
)

// answer keeps the handler's answer back: nobody must read "done" before the store has confirmed.
type answer struct {
	header http.Header
	status int // 0 until there is one
	sent   http.Header
	body   bytes.Buffer
	limit  int64
	over   bool
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter. Informational answers are left out.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status, a.sent = status, a.header.Clone() // changes after this have no effect
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.over = a.over || int64(a.body.Len()+len(data)) > a.limit; a.over {
		return 0, errLargeAnswer
	}
	return a.body.Write(data)
}

// failure is what keeps the store from confirming.
func (a *answer) failure() error {
	switch {
	case a.over:
		return errLargeAnswer
	case a.status >= 400:
		return errRefused
	}
	return nil
}

func (a *answer) sendTo(w http.ResponseWriter) {
	a.WriteHeader(http.StatusOK)
	header := w.Header()
	for key, values := range a.sent {
		header[key] = values
	}
	w.WriteHeader(a.status)
	// A failed write means that the caller is gone; there is nobody left to tell.
	_, _ = w.Write(a.body.Bytes())
}
