package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/boltfence"
)

// Store is what the locks protect: rows of numbers, by name, which all clients share. With stamps, one for each name, reads
// and writes are refused (*fence.StaleError) when one of them is stale; without, nothing is checked. It is safe for
// concurrent use, and a write happens whole or not at all: only an error that is neither a *fence.StaleError nor matches
// ErrUnwritten leaves open whether it did.
//
// Reads are stamped too. A read moves the mark, so that an earlier holder's late write is refused from then on; otherwise
// that could come after the read of the next holder and would be lost.
type Store interface {
	Read(ctx context.Context, names []string, stamps []fence.Stamp) ([][]int64, error)
	Write(ctx context.Context, names []string, stamps []fence.Stamp, rows [][]int64) error
	Close() error
}

// ErrUnwritten: a write surely did not happen.
var ErrUnwritten = errors.New("not written")

// memory keeps rows in memory behind a fence.Guard.
type memory struct {
	guard *fence.Guard
	mu    sync.Mutex
	rows  map[string][]int64
}

// NewMemory makes a Store in memory.
func NewMemory() Store { return &memory{guard: fence.NewGuard(10_000), rows: map[string][]int64{}} }

// under runs do under the marks of all names. The names must be in one order for everybody.
func (m *memory) under(names []string, stamps []fence.Stamp, do func()) error {
	if len(stamps) == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		do()
		return nil
	}
	return m.guard.Do(names[0], stamps[0], func() error { return m.under(names[1:], stamps[1:], do) })
}

func (m *memory) Read(_ context.Context, names []string, stamps []fence.Stamp) (rows [][]int64, err error) {
	err = m.under(names, stamps, func() {
		for _, name := range names {
			rows = append(rows, append([]int64(nil), m.rows[name]...))
		}
	})
	return rows, err
}

func (m *memory) Write(_ context.Context, names []string, stamps []fence.Stamp, rows [][]int64) error {
	return m.under(names, stamps, func() {
		for i, name := range names {
			m.rows[name] = append([]int64(nil), rows[i]...)
		}
	})
}

func (m *memory) Close() error { return nil }

// bolt keeps rows in a bbolt file, with the marks beside them in the same transaction.
type bolt struct{ db *bbolt.DB }

var rowsBucket = []byte("rows")

// NewBolt makes a Store in a file. With sync each write is on disk when it returns.
func NewBolt(path string, sync bool) (Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: !sync})
	if err != nil {
		return nil, fmt.Errorf("opening the register: %w", err)
	}
	return &bolt{db}, nil
}

func checkAll(tx *bbolt.Tx, names []string, stamps []fence.Stamp) error {
	for i, stamp := range stamps {
		if err := boltfence.Check(tx, names[i], stamp); err != nil {
			return err
		}
	}
	return nil
}

func (b *bolt) Read(_ context.Context, names []string, stamps []fence.Stamp) (rows [][]int64, err error) {
	err = b.db.Update(func(tx *bbolt.Tx) error {
		rows = nil
		bucket, err := tx.CreateBucketIfNotExists(rowsBucket)
		if err != nil {
			return err
		}
		if err := checkAll(tx, names, stamps); err != nil {
			return err
		}
		for _, name := range names {
			rows = append(rows, decodeRow(bucket.Get([]byte(name))))
		}
		return nil
	})
	return rows, err
}

func (b *bolt) Write(_ context.Context, names []string, stamps []fence.Stamp, rows [][]int64) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists(rowsBucket)
		if err != nil {
			return err
		}
		if err := checkAll(tx, names, stamps); err != nil {
			return err
		}
		for i, name := range names {
			if err := bucket.Put([]byte(name), encodeRow(rows[i])); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bolt) Close() error { return b.db.Close() }

func encodeRow(row []int64) []byte {
	var data []byte
	for _, v := range row {
		data = binary.AppendVarint(data, v)
	}
	return data
}

func decodeRow(data []byte) (row []int64) {
	for len(data) > 0 {
		v, n := binary.Varint(data)
		if n <= 0 {
			return row // written by encodeRow and checked by bbolt: not reached
		}
		row, data = append(row, v), data[n:]
	}
	return row
}
