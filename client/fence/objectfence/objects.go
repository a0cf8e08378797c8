package objectfence

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
)

var (
	// ErrNotFound: there is no such object. Bucket gives it, and Read.
	ErrNotFound = errors.New("objectfence: no such object")
	// ErrChanged is given by a Bucket: the condition was not met, or another write was going on
	// (S3's 409 ConditionalRequestConflict). Nothing was written.
	ErrChanged = errors.New("objectfence: the object has changed")
	// ErrUnknown: it is not known whether the object was written, as the answer was lost. A Bucket
	// gives it to be asked again; Write gives it when it has asked often enough.
	ErrUnknown = errors.New("objectfence: the outcome is unknown")
	// ErrContended: others have changed the object before each of the attempts. Nothing was
	// written.
	ErrContended = errors.New("objectfence: too many others write this object")
	// ErrUnmarked: the object was not written by this package, or its metadata was lost.
	ErrUnmarked = errors.New("objectfence: the object has no mark")
)

// Bucket is what the kit asks of an object store, for a client library to be put behind; HTTP is
// one that needs none. An implementation must be safe for concurrent use. Marks are short ASCII
// text for the object's metadata.
type Bucket interface {
	// Head gives the object's ETag, as it is to be sent with If-Match, and its mark, "" when it has
	// none; ErrNotFound.
	Head(ctx context.Context, key string) (etag, mark string, err error)
	// Put replaces content and mark together if the ETag is still match; when match is "", if there
	// is no object. It gives ErrChanged (on 412, on 409, and on 404 for a match) or ErrUnknown; any
	// other error says that nothing was written and trying again is of no use.
	Put(ctx context.Context, key string, content []byte, mark, match string) error
	// Get gives content and mark of one moment; ErrNotFound.
	Get(ctx context.Context, key string) (content []byte, mark string, err error)
}

// Objects fences the objects of a bucket. It is safe for concurrent use.
type Objects struct {
	Bucket Bucket
	// Plain stores content without a first line. It is safe only where every write changes the ETag
	// even if it writes the same content again, which is not so in S3: see the package's
	// documentation.
	Plain bool
	// Adopt takes an object without a mark for one that no holder has written yet. Read gives it as
	// it is.
	Adopt bool
}

const (
	// Writers that lose give way to one that wins each time; more are a herd, not a lock's holders.
	maxAttempts  = 20
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// Write replaces the object if the stamp is allowed. It looks, compares, and writes on the
// condition that nothing has changed; if something has, it looks again, at most 20 times with
// growing pauses. An answer that was lost it looks for, too. Errors: a *fence.StaleError (with
// ErrUnknown when an attempt may have been in time before that), fence.ErrInvalid, ErrUnmarked,
// ErrContended, ErrUnknown, the context's, or the bucket's.
func (o Objects) Write(ctx context.Context, key string, stamp fence.Stamp, content []byte) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	id := rand.Text() // of this write: it tells its own mark from that of another with the same stamp
	match, unknown := "", error(nil)
	for attempt := range maxAttempts {
		if err := pause(ctx, attempt); err != nil {
			return errors.Join(unknown, err)
		}
		etag, text, err := o.Bucket.Head(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return errors.Join(unknown, fmt.Errorf("looking at object %q: %w", key, err))
		}
		var newest fence.Stamp
		if err != nil {
			etag = ""
		} else {
			var writer string
			if newest, writer, err = o.parse(text); err != nil {
				return errors.Join(unknown, fmt.Errorf("object %q: %w", key, err))
			}
			if writer == id { // an earlier attempt's answer was lost, here or in the client library
				return nil
			}
		}
		if err := stamp.Allowed(newest); err != nil {
			return errors.Join(unknown, err) // the lost attempt may have been in time
		}
		if unknown != nil && stamp.Shared && etag != match {
			// Others of the period have written since: before or after the attempt, if it came to
			// anything?
			return unknown
		}
		if match = etag; stamp.Above(newest) { // a shared one may be allowed without being above
			newest = stamp
		}
		mark := newest.String() + " " + id
		whole := content
		if !o.Plain {
			whole = append([]byte(firstLine(mark)), content...)
		}
		switch err := o.Bucket.Put(ctx, key, whole, mark, match); {
		case err == nil:
			return nil
		case errors.Is(err, ErrUnknown):
			unknown = fmt.Errorf("writing object %q with stamp %v: %w", key, stamp, err)
		case !errors.Is(err, ErrChanged):
			return errors.Join(unknown, fmt.Errorf("writing object %q with stamp %v: %w", key, stamp, err))
		}
	}
	if unknown != nil {
		return unknown
	}
	return fmt.Errorf("writing object %q with stamp %v: %w", key, stamp, ErrContended)
}

// Read gives content and mark; ErrNotFound, ErrUnmarked, or the bucket's error.
func (o Objects) Read(ctx context.Context, key string) ([]byte, fence.Stamp, error) {
	content, text, err := o.Bucket.Get(ctx, key)
	if err != nil {
		return nil, fence.Stamp{}, fmt.Errorf("reading object %q: %w", key, err)
	}
	mark, _, err := o.parse(text)
	if err != nil {
		return nil, fence.Stamp{}, fmt.Errorf("object %q: %w", key, err)
	}
	if o.Plain || text == "" {
		return content, mark, nil
	}
	content, found := bytes.CutPrefix(content, []byte(firstLine(text)))
	if !found { // metadata and content are of different writes
		return nil, fence.Stamp{}, fmt.Errorf("object %q: %w", key, ErrUnmarked)
	}
	return content, mark, nil
}

func firstLine(mark string) string { return "pawl-stamp " + mark + "\n" }

// parse reads "41.7 ID".
func (o Objects) parse(text string) (newest fence.Stamp, writer string, err error) {
	if text == "" && o.Adopt {
		return fence.Stamp{}, "", nil
	}
	stamp, writer, _ := strings.Cut(text, " ")
	if newest, err = fence.Parse(stamp); err != nil {
		return fence.Stamp{}, "", fmt.Errorf("%w: %.80q", ErrUnmarked, text)
	}
	return newest, writer, nil
}

// pause waits before an attempt that is not the first, a random time so that those who met do not
// meet again.
func pause(ctx context.Context, attempt int) error {
	if attempt == 0 {
		return nil
	}
	longest := min(firstPause<<min(attempt-1, 10), longestPause)
	timer := time.NewTimer(mathrand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
