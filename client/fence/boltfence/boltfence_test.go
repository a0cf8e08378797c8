package boltfence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/boltfence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
)

var data = []byte("data")

func open(t *testing.T, path string) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func put(tx *bbolt.Tx, content string) error {
	bucket, err := tx.CreateBucketIfNotExists(data)
	if err != nil {
		return err
	}
	return bucket.Put(data, []byte(content))
}

func resource(db *bbolt.DB) fencetest.Resource {
	return fencetest.Resource{
		Write: func(_ context.Context, stamp fence.Stamp, content string) error {
			return db.Update(func(tx *bbolt.Tx) error {
				if err := boltfence.Check(tx, "report", stamp); err != nil {
					return err
				}
				return put(tx, content)
			})
		},
		Read: func(context.Context) (content string, mark fence.Stamp, err error) {
			err = db.View(func(tx *bbolt.Tx) error {
				if bucket := tx.Bucket(data); bucket != nil {
					content = string(bucket.Get(data))
				}
				mark, err = boltfence.Newest(tx, "report")
				return err
			})
			return content, mark, err
		},
	}
}

func TestKit(t *testing.T) {
	fencetest.Run(t, 20, func(t *testing.T) fencetest.Resource {
		return resource(open(t, filepath.Join(t.TempDir(), "db")))
	})
}

func TestStore(t *testing.T) {
	fencetest.Run(t, 10, func(t *testing.T) fencetest.Resource {
		db := open(t, filepath.Join(t.TempDir(), "db"))
		r, store := resource(db), boltfence.Store(db)
		r.Write = func(ctx context.Context, stamp fence.Stamp, content string) error {
			return store(ctx, "report", stamp, func(ctx context.Context) error { return put(boltfence.Tx(ctx), content) })
		}
		return r
	})
}

// What is rolled back, by an error or a panic, leaves neither mark nor content; what is committed
// is there for whoever opens the file next.
func TestMarkAndContentGoTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	r := resource(db)
	if err := r.Write(t.Context(), fencetest.Exclusive(33, 1), "33.1"); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	fail := func(end func() error) (err error) {
		defer func() {
			if recover() != nil {
				err = broken
			}
		}()
		return boltfence.Store(db)(t.Context(), "report", fencetest.Exclusive(41, 1), func(ctx context.Context) error {
			if err := put(boltfence.Tx(ctx), "half done"); err != nil {
				t.Error(err)
			}
			return end()
		})
	}
	for _, end := range []func() error{func() error { return broken }, func() error { panic("broken") }} {
		if err := fail(end); !errors.Is(err, broken) {
			t.Errorf("a write that failed: %v", err)
		}
		fencetest.Expect(t, r, fencetest.Exclusive(33, 1))
	}
	if err := r.Write(t.Context(), fencetest.Exclusive(41, 1), "41.1"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r = resource(open(t, path))
	fencetest.Expect(t, r, fencetest.Exclusive(41, 1))
	fencetest.Refused(t, r.Write(t.Context(), fencetest.Exclusive(33, 2), "late"), fencetest.Exclusive(33, 2), fencetest.Exclusive(41, 1))
}

// TestKilledProcess kills a real process among its writes: what it had confirmed is there, and mark
// and content belong together.
func TestKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	for range 10 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), "BOLTFENCE_WRITER="+path)
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		lines, confirmed := bufio.NewScanner(out), fence.Stamp{}
		for count := 0; lines.Scan(); {
			if confirmed, err = fence.Parse(lines.Text()); err != nil {
				t.Errorf("the writer said %s", lines.Text())
			}
			if count++; count == 5 {
				_ = command.Process.Kill() // it writes on until this arrives; what it has said is still read
			}
		}
		_ = command.Wait()
		db := open(t, path)
		content, mark, err := resource(db).Read(t.Context())
		if err != nil || content != mark.String() || confirmed.Above(mark) || confirmed == (fence.Stamp{}) {
			t.Fatalf("there is %q with mark %v (%v), and %v was confirmed", content, mark, err, confirmed)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// writer writes until it is killed and says what is done, a stamp a line.
func writer(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	r := resource(db)
	_, newest, err := r.Read(context.Background())
	for err == nil {
		newest = fencetest.Exclusive(newest.Token+1, newest.Sequence+1)
		if err = r.Write(context.Background(), newest, newest.String()); err == nil {
			fmt.Println(newest)
		}
	}
	return err
}

func TestMain(m *testing.M) {
	if path := os.Getenv("BOLTFENCE_WRITER"); path != "" {
		fmt.Println("error:", writer(path))
		return
	}
	os.Exit(m.Run())
}

func TestRefusals(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"))
	stamp := fencetest.Exclusive(5, 1)
	if err := db.View(func(tx *bbolt.Tx) error { return boltfence.Check(tx, "report", stamp) }); !errors.Is(err, bolterrors.ErrTxNotWritable) {
		t.Errorf("in a read-only transaction: %v", err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error { return boltfence.Check(tx, "", stamp) }); !errors.Is(err, bolterrors.ErrKeyRequired) {
		t.Errorf("without a name: %v", err)
	}
	// A damaged mark is not "nothing seen".
	err := db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("pawl-fence"))
		if err != nil {
			return err
		}
		return bucket.Put([]byte("report"), []byte("41."))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := resource(db).Write(t.Context(), stamp, "x"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("over a damaged mark: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := boltfence.Store(db)(ended, "other", stamp, func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
