package httpfence

import (
	"net/http"

	"github.com/pawl-lock/pawl/client/fence"
)

// Transport adds the stamp that the request's context carries as a header; a request without one
// goes out as it is. It is safe for concurrent use when Base is. Every request needs a stamp of its
// own: a second one with the same exclusive stamp is refused as a repeated write.
type Transport struct {
	Base http.RoundTripper // nil is http.DefaultTransport
}

// RoundTrip implements http.RoundTripper. A stamp that is none (the hold is gone) is an error that
// matches fence.ErrInvalid, and nothing is sent.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	stamp, found := fence.StampFrom(r.Context())
	if !found {
		return base.RoundTrip(r)
	}
	if err := stamp.Validate(); err != nil {
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
	return base.RoundTrip(stamped)
}
