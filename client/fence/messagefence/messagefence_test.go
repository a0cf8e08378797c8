package messagefence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/boltfence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/messagefence"
)

var data = []byte("data")

func open(t *testing.T) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bbolt.Options{NoSync: true}) // no crash here
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// appendTo is what handling does: it adds the content to what is there, in the store's transaction.
func appendTo(ctx context.Context, content string) error {
	bucket, err := boltfence.Tx(ctx).CreateBucketIfNotExists(data)
	if err != nil {
		return err
	}
	return bucket.Put(data, append(slices.Clone(bucket.Get(data)), content+" "...))
}

func content(t *testing.T, db *bbolt.DB) (all string) {
	t.Helper()
	err := db.View(func(tx *bbolt.Tx) error {
		if bucket := tx.Bucket(data); bucket != nil {
			all = string(bucket.Get(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(all)
}

func TestOutcomes(t *testing.T) {
	db := open(t)
	broken := errors.New("broken")
	// A refusal by something else that handling writes to is a failure, and says nothing about this
	// message.
	elsewhere := &fence.StaleError{Offered: fencetest.Exclusive(41, 2), Newest: fencetest.Exclusive(41, 2)}
	for _, c := range []struct {
		stamp fence.Stamp
		end   error
		want  messagefence.Outcome
	}{
		{fencetest.Exclusive(33, 1), nil, messagefence.Done},
		{fencetest.Exclusive(33, 1), nil, messagefence.AlreadyDone},
		{fencetest.Exclusive(33, 2), broken, 0},
		{fencetest.Exclusive(33, 2), nil, messagefence.Done}, // delivered again
		{fencetest.Exclusive(33, 5), nil, messagefence.Done}, // some were for other names
		{fencetest.Exclusive(33, 1), nil, messagefence.AlreadyDone},
		{fencetest.Exclusive(41, 1), nil, messagefence.Done},
		{fencetest.Exclusive(33, 6), nil, messagefence.Stale}, // the suspended producer
		{fencetest.Exclusive(33, 5), nil, messagefence.Stale},
		{fencetest.Exclusive(41, 2), elsewhere, 0},
		{fencetest.Exclusive(41, 2), nil, messagefence.Done},
		{fencetest.Shared(50), nil, messagefence.Done},
		{fencetest.Shared(50), nil, messagefence.Done}, // cannot be told apart
		{fencetest.Shared(41), nil, messagefence.Stale},
		{fence.Stamp{Token: 51}, nil, 0},
	} {
		outcome, err := messagefence.Handle(t.Context(), boltfence.Store(db), "key", c.stamp, func(ctx context.Context) error {
			if stamp, found := fence.StampFrom(ctx); !found || stamp != c.stamp {
				t.Errorf("the context carries %v", stamp)
			}
			if err := appendTo(ctx, c.stamp.String()); err != nil {
				return err
			}
			return c.end
		})
		if outcome != c.want || (err == nil) != (c.want != 0) || c.end != nil && !errors.Is(err, c.end) {
			t.Errorf("%v: %v (%v), want %v", c.stamp, outcome, err, c.want)
		}
	}
	if all := content(t, db); all != "33.1 33.2 33.5 41.1 41.2 50.s 50.s" {
		t.Errorf("handled were %s", all)
	}
}

// Handling is the write of the kit.
func TestKit(t *testing.T) {
	fencetest.Run(t, 20, func(t *testing.T) fencetest.Resource {
		db := open(t)
		return fencetest.Resource{
			Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
				var newest fence.Stamp
				store := func(ctx context.Context, name string, stamp fence.Stamp, write func(context.Context) error) error {
					err := boltfence.Store(db)(ctx, name, stamp, write)
					var stale *fence.StaleError
					if errors.As(err, &stale) {
						newest = stale.Newest
					}
					return err
				}
				outcome, err := messagefence.Handle(ctx, store, "key", stamp, func(ctx context.Context) error {
					bucket, err := boltfence.Tx(ctx).CreateBucketIfNotExists(data)
					if err != nil {
						return err
					}
					return bucket.Put(data, []byte(content))
				})
				if outcome == messagefence.Stale || outcome == messagefence.AlreadyDone {
					return &fence.StaleError{Offered: stamp, Newest: newest}
				}
				return err
			},
			Read: func(context.Context) (content string, mark fence.Stamp, err error) {
				err = db.View(func(tx *bbolt.Tx) error {
					if bucket := tx.Bucket(data); bucket != nil {
						content = string(bucket.Get(data))
					}
					mark, err = boltfence.Newest(tx, "key")
					return err
				})
				return content, mark, err
			},
		}
	})
}

// TestRedelivery runs a log that is delivered at least once, from any earlier place at any moment,
// to a consumer that fails now and then before and after its commit: every message is handled once,
// in order.
func TestRedelivery(t *testing.T) {
	for range 5 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		db := open(t)
		var log []map[string][]byte
		var want []string
		token := uint64(1)
		for sequence := uint64(1); sequence <= 40; sequence++ {
			if random.IntN(5) == 0 {
				token += 1 + random.Uint64N(10)
			}
			headers := map[string][]byte{}
			messagefence.SetStamp(headers, fencetest.Exclusive(token, sequence))
			log = append(log, headers)
			want = append(want, fencetest.Exclusive(token, sequence).String())
		}
		again := 0
		for next, deliveries := 0, 0; next < len(log); deliveries++ {
			if deliveries > 100_000 {
				t.Fatalf("seed %d: no end", seed)
			}
			stamp, err := messagefence.StampOf(log[next])
			if err != nil {
				t.Fatal(err)
			}
			outcome, err := messagefence.Handle(t.Context(), boltfence.Store(db), "key", stamp, func(ctx context.Context) error {
				if err := appendTo(ctx, stamp.String()); err != nil {
					return err
				}
				if random.IntN(4) == 0 {
					return errors.New("the consumer fails before its commit")
				}
				return nil
			})
			switch {
			case err != nil:
				continue // delivered again
			case outcome != messagefence.Done:
				again++
			}
			if next++; random.IntN(6) == 0 {
				next = random.IntN(next) // it fails before it acknowledges, and goes on from an earlier place
			}
		}
		if all := content(t, db); all != strings.Join(want, " ") || again == 0 {
			t.Errorf("seed %d: %d deliveries were repeated; handled were %s, want %v", seed, again, all, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	texts := map[string]string{"other": "x"}
	messagefence.SetStamp(texts, fencetest.Shared(41))
	if stamp, err := messagefence.StampOf(texts); err != nil || stamp != fencetest.Shared(41) || texts["pawl-stamp"] != "41.s" || texts["other"] != "x" {
		t.Errorf("%v %v %v", stamp, err, texts)
	}
	delete(texts, "pawl-stamp")
	if _, err := messagefence.StampOf(texts); !errors.Is(err, messagefence.ErrUnstamped) {
		t.Errorf("without a stamp: %v", err)
	}
	var none map[string][]byte
	if _, err := messagefence.StampOf(none); !errors.Is(err, messagefence.ErrUnstamped) {
		t.Errorf("without headers: %v", err)
	}
	for _, value := range []string{"", "41", "41.1\x00", strings.Repeat("1", 1000)} {
		if _, err := messagefence.StampOf(map[string][]byte{"pawl-stamp": []byte(value)}); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%.20q: %v", value, err)
		}
	}
	if words := fmt.Sprint(messagefence.Done, messagefence.AlreadyDone, messagefence.Stale, messagefence.Outcome(0)); words != "done already done stale failed" {
		t.Error(words)
	}
}
