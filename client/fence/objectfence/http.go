package objectfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// MarkHeader carries the mark as S3's user metadata.
const MarkHeader = "X-Amz-Meta-Pawl-Stamp"

// MaxObject bounds what Get reads, in bytes, as it is held in memory.
const MaxObject = 64 << 20

// HTTP is a Bucket that speaks S3's REST protocol, as far as the kit needs it. S3 takes conditional
// writes over TLS or signed only: a Client whose Transport signs (Signature Version 4) must bring
// that along. Redirects are not followed but errors: the URL must be the one that answers.
type HTTP struct {
	URL    string       // of the bucket, without query: https://bucket.s3.eu-central-1.amazonaws.com
	Client *http.Client // nil is http.DefaultClient. It should have a timeout
}

// Head implements Bucket.
func (h HTTP) Head(ctx context.Context, key string) (etag, mark string, err error) {
	response, err := h.do(ctx, http.MethodHead, key, nil, nil)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if err := wantOK(response); err != nil {
		return "", "", err
	}
	etag = response.Header.Get("ETag")
	if etag == "" || strings.HasPrefix(etag, "W/") { // If-Match compares strong ones only (RFC 9110, 8.8.3.2)
		return "", "", fmt.Errorf("the store answers with the ETag %.80q, which cannot be compared", etag)
	}
	return etag, response.Header.Get(MarkHeader), nil
}

// Put implements Bucket.
func (h HTTP) Put(ctx context.Context, key string, content []byte, mark, match string) error {
	header := http.Header{MarkHeader: {mark}}
	if match == "" {
		header.Set("If-None-Match", "*")
	} else {
		header.Set("If-Match", match)
	}
	response, err := h.do(ctx, http.MethodPut, key, header, content)
	if sending := (*url.Error)(nil); errors.As(err, &sending) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusPreconditionFailed, status == http.StatusConflict,
		status == http.StatusNotFound && match != "": // deleted since
		return ErrChanged
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", ErrUnknown, response.Status)
	}
	return wantOK(response)
}

// Get implements Bucket.
func (h HTTP) Get(ctx context.Context, key string) (content []byte, mark string, err error) {
	response, err := h.do(ctx, http.MethodGet, key, nil, nil)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if err := wantOK(response); err != nil {
		return nil, "", err
	}
	content, err = io.ReadAll(io.LimitReader(response.Body, MaxObject+1))
	if err != nil {
		return nil, "", err
	}
	if len(content) > MaxObject {
		return nil, "", fmt.Errorf("the object has more than %d bytes", MaxObject)
	}
	return content, response.Header.Get(MarkHeader), nil
}

func (h HTTP) do(ctx context.Context, method, key string, header http.Header, content []byte) (*http.Response, error) {
	if key == "" { // it would be the bucket itself
		return nil, errors.New("objectfence: an empty key")
	}
	target := strings.TrimSuffix(h.URL, "/") + (&url.URL{Path: "/" + key}).EscapedPath()
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	client := http.Client{} // a copy: the caller's is not ours to change
	if h.Client != nil {
		client = *h.Client
	}
	// net/http makes a GET of a PUT that is answered 301 or 302, whose 200 would be taken for the write's.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client.Do(request)
}

// wantOK gives an error for any status but 200. What the store says about it is for who operates
// it.
func wantOK(response *http.Response) error {
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return ErrNotFound
	}
	if location := response.Header.Get("Location"); location != "" && response.StatusCode < 400 {
		return fmt.Errorf("the store answers %s: the bucket is at %.200q, and redirects are not followed", response.Status, location)
	}
	said, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	return fmt.Errorf("the store answers %s: %s", response.Status, bytes.ToValidUTF8(said, nil))
}
