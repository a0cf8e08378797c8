package objectfence

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
)

// ErrNotConditional: the store writes although the condition is not met. Nothing can be fenced
// there.
var ErrNotConditional = errors.New("objectfence: the store does not compare before it writes")

// Probe tries out whether the store can compare and set, as some say that they do and ignore the
// condition. It needs a key that is used for nothing else, and leaves an object there. When err is
// nil the kit fits; plain says that the ETag has changed when only the mark did, without which
// Objects.Plain is unsafe. It does not try concurrent writes. Errors: ErrNotConditional, or the
// bucket's.
func Probe(ctx context.Context, bucket Bucket, key string) (plain bool, err error) {
	content := []byte("objectfence.Probe " + rand.Text() + "\n")
	first, _, err := bucket.Head(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, err
	}
	if err := bucket.Put(ctx, key, content, "probe 1", first); err != nil {
		return false, fmt.Errorf("writing under the object's own ETag: %w", err)
	}
	second, mark, err := bucket.Head(ctx, key)
	if err != nil {
		return false, err
	}
	if mark != "probe 1" {
		return false, fmt.Errorf("the store does not keep metadata: %q came back", mark)
	}
	refused := func(match string) error {
		switch err := bucket.Put(ctx, key, []byte("this must not be written\n"), "probe 2", match); {
		case err == nil:
			return fmt.Errorf("%w: it took the ETag %q while it had %q", ErrNotConditional, match, second)
		case !errors.Is(err, ErrChanged):
			return err
		}
		return nil
	}
	if err := refused(""); err != nil { // "only if there is none"
		return false, err
	}
	if first == "" {
		first = `"00000000000000000000000000000000"`
	}
	if err := refused(first); err != nil {
		return false, err
	}
	if err := bucket.Put(ctx, key, content, "probe 3", second); err != nil {
		return false, fmt.Errorf("writing under the object's own ETag: %w", err)
	}
	third, mark, err := bucket.Head(ctx, key)
	if err != nil {
		return false, err
	}
	if mark != "probe 3" {
		return false, fmt.Errorf("the store does not replace metadata: %q came back", mark)
	}
	return third != second, nil
}
