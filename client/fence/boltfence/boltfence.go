// Package boltfence fences what is kept in a bbolt file: the mark is checked and moved on inside
// the caller's own transaction, so that it is kept together with what was written, or neither is.
//
//	err := db.Update(func(tx *bbolt.Tx) error {
//		if err := boltfence.Check(tx, "account/7", stamps.Next()); err != nil {
//			return err
//		}
//		return tx.Bucket(accounts).Put(key, value)
//	})
//
// Fencing a file that only one process can open is of use where writes come from elsewhere: a
// server that keeps its data in bbolt, and whose callers hold the locks.
//
// What it cannot guarantee: a transaction that goes on after Check refused it is committed like any
// other, so its error must be returned. What is written without Check, or with another name, is not
// fenced. Marks are never removed, as an old holder would be let in again: one key of the bucket
// "pawl-fence" remains for each name. A file restored from a backup has that day's marks. With
// DB.NoSync a crash of the machine loses marks, and the writes with them.
package boltfence

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/pawl-lock/pawl/client/fence"
)

var bucketName = []byte("pawl-fence")

// Check refuses the stamp with a *fence.StaleError, or makes it the mark of this name when tx is
// committed. It belongs before all writes of tx, which must be rolled back after any error:
// *StaleError, fence.ErrInvalid, or bbolt's own, such as for a read-only transaction or an empty
// name. It does not block.
func Check(tx *bbolt.Tx, name string, stamp fence.Stamp) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	bucket, err := tx.CreateBucketIfNotExists(bucketName)
	if err != nil {
		return fmt.Errorf("opening the marks: %w", err)
	}
	newest, err := read(bucket, name)
	if err != nil {
		return err
	}
	if err := stamp.Allowed(newest); err != nil {
		return err
	}
	if !stamp.Above(newest) {
		return nil
	}
	if err := bucket.Put([]byte(name), []byte(stamp.String())); err != nil {
		return fmt.Errorf("moving the mark of %q on: %w", name, err)
	}
	return nil
}

// Newest gives the mark of a name, zero when nothing was seen.
func Newest(tx *bbolt.Tx, name string) (fence.Stamp, error) {
	bucket := tx.Bucket(bucketName)
	if bucket == nil {
		return fence.Stamp{}, nil
	}
	return read(bucket, name)
}

// read refuses what is no mark: taking it for "nothing seen" would let everybody in.
func read(bucket *bbolt.Bucket, name string) (fence.Stamp, error) {
	text := bucket.Get([]byte(name))
	if text == nil {
		return fence.Stamp{}, nil
	}
	newest, err := fence.Parse(string(text))
	if err != nil {
		return fence.Stamp{}, fmt.Errorf("the mark of %q is damaged: %w", name, err)
	}
	return newest, nil
}

type txKey struct{}

// Store makes the store for httpfence and messagefence: each write runs in a transaction of its
// own, which it finds with Tx. bbolt runs one at a time, so a write must not wait for anybody, and
// must not begin a transaction itself.
func Store(db *bbolt.DB) fence.Store {
	return func(ctx context.Context, name string, stamp fence.Stamp, write func(context.Context) error) error {
		return db.Update(func(tx *bbolt.Tx) error {
			if err := ctx.Err(); err != nil { // Update may have waited long
				return err
			}
			if err := Check(tx, name, stamp); err != nil {
				return err
			}
			return write(context.WithValue(ctx, txKey{}, tx))
		})
	}
}

// Tx gives the transaction that a write of Store runs in, nil elsewhere.
func Tx(ctx context.Context) *bbolt.Tx {
	tx, _ := ctx.Value(txKey{}).(*bbolt.Tx)
	return tx
}
