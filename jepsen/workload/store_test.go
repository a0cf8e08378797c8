package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/examples/local"
)

func TestStoresRefuseStaleStamps(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) Store{
		"memory": func(*testing.T) Store { return NewMemory() },
		"bolt": func(t *testing.T) Store {
			s, err := NewBolt(filepath.Join(t.TempDir(), "rows.db"), false)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"postgres": newPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			ctx := context.Background()
			both := []string{"a", "b"}
			at := func(tokens ...uint64) (stamps []fence.Stamp) {
				for _, token := range tokens {
					stamps = append(stamps, fence.Stamp{Token: token, Sequence: 1})
				}
				return stamps
			}
			want := func(rows ...[]int64) {
				t.Helper()
				got, err := s.Read(ctx, both, nil)
				if err != nil || !slices.EqualFunc(got, rows, slices.Equal) {
					t.Fatalf("there is %v, want %v (%v)", got, rows, err)
				}
			}
			want(nil, nil)
			if err := s.Write(ctx, both, at(5, 5), [][]int64{{1}, {-2, 3}}); err != nil {
				t.Fatal(err)
			}
			want([]int64{1}, []int64{-2, 3})
			// One stamp that is too old refuses the whole write.
			if err := s.Write(ctx, both, at(6, 4), [][]int64{{7}, {7}}); !errors.Is(err, fence.ErrStale) {
				t.Errorf("a write with an old stamp: %v", err)
			}
			want([]int64{1}, []int64{-2, 3})
			// A read moves the mark: who held the lock before comes too late.
			if _, err := s.Read(ctx, []string{"b"}, at(9)); err != nil {
				t.Fatal(err)
			}
			if err := s.Write(ctx, []string{"b"}, at(8), [][]int64{{7}}); !errors.Is(err, fence.ErrStale) {
				t.Errorf("a write after a newer read: %v", err)
			}
			if _, err := s.Read(ctx, []string{"b"}, at(8)); !errors.Is(err, fence.ErrStale) {
				t.Errorf("a read after a newer read: %v", err)
			}
			if err := s.Write(ctx, []string{"b"}, nil, [][]int64{{7}}); err != nil {
				t.Errorf("a write without stamps: %v", err)
			}
			want([]int64{1}, []int64{7})
		})
	}
}

// newPostgres starts one, which ends with the test.
func newPostgres(t *testing.T) Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := local.StartPostgres(ctx, PostgresSettings(2)...)
	if errors.Is(err, local.ErrNotInstalled) && os.Getenv("PAWL_CI") != "1" {
		t.Skipf("not installed: skipped (%v)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	if err := CreatePostgres(ctx, server.Address); err != nil {
		t.Fatal(err)
	}
	s, err := NewPostgres(server.Address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Who is stopped in the middle of a transaction does not hold up the others for ever, and is told when it goes on.
func TestPostgresEndsAnIdleTransaction(t *testing.T) {
	s := newPostgres(t)
	defer func() { _ = s.Close() }()
	p, ctx := s.(*postgres), t.Context()
	stopped, err := p.begin(ctx, []string{"a"}, []fence.Stamp{{Token: 5, Sequence: 1}})
	if err != nil {
		t.Fatal(err)
	}
	// It waits for the row, and gets it.
	if err := s.Write(ctx, []string{"a"}, []fence.Stamp{{Token: 6, Sequence: 1}}, [][]int64{{1}}); err != nil {
		t.Errorf("a write beside a transaction that does nothing: %v", err)
	}
	if err := stopped.Commit(); err == nil {
		t.Error("the commit of a transaction that was idle for too long is done")
	}
}
