package httpfence

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/pawl-lock/pawl/client/fence"
)

// ErrRedirected: a stamped write was answered with a redirect (301 or 302) that net/http follows with a
// GET. The write was not made there, and the GET's 200 must not be taken for its answer.
var ErrRedirected = errors.New("httpfence: a write was redirected, and would have become a read")

// Transport adds the stamp that the request's context carries as a header; a request without one
// goes out as it is. It is safe for concurrent use when Base is. Every request needs a stamp of its
// own: a second one with the same exclusive stamp is refused as a repeated write.
type Transport struct {
	Base http.RoundTripper // nil is http.DefaultTransport
}

// RoundTrip implements http.RoundTripper. A stamp that is none (the hold is gone) is an error that
// matches fence.ErrInvalid, and nothing is sent; so is ErrRedirected. A 303 is followed: with it a
// service says that the write was done, and where to read what came of it.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	stamp, found := fence.StampFrom(r.Context())
	if !found {
		return base.RoundTrip(r)
	}
	err := stamp.Validate()
	if err == nil {
		err = redirected(r)
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	stamped := r.Clone(r.Context()) // the caller's request is not ours to change
	if stamped.Header == nil {
		stamped.Header = make(http.Header)
	}
	stamped.Header.Set(Header, stamp.String())
	response, err := base.RoundTrip(stamped)
	if response != nil && response.Request == nil {
		response.Request = stamped // a base that leaves it out; redirected wants the method
	}
	return response, err
}

// redirected gives ErrRedirected when net/http makes this request because another, of another
// method, was answered 301 or 302.
func redirected(r *http.Request) error {
	answer := r.Response
	if answer == nil || answer.Request == nil || answer.Request.Method == r.Method {
		return nil
	}
	if answer.StatusCode != http.StatusMovedPermanently && answer.StatusCode != http.StatusFound {
		return nil
	}
	return fmt.Errorf("%w: %s %s was answered %d", ErrRedirected, answer.Request.Method, answer.Request.URL.Redacted(), answer.StatusCode)
}
