package workload

import (
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/pawl-lock/pawl/client/fence"
)

// A store that other processes use is the same store: rows, refusals, and what is not known.
func TestRemoteStore(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	local, err := NewBolt(filepath.Join(dir, "rows"), false)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- Serve(listener, local) }()
	s := NewRemote(filepath.Join(dir, "socket"))
	old, newer := fence.Stamp{Token: 5, Sequence: 1}, fence.Stamp{Token: 9, Sequence: 1}
	rows := [][]int64{{3, -4}}
	if err := s.Write(ctx, []string{"a"}, []fence.Stamp{newer}, rows); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(ctx, []string{"a"}, []fence.Stamp{old}, [][]int64{{7}}); !errors.Is(err, fence.ErrStale) {
		t.Errorf("an old stamp: %v", err)
	}
	if got, err := s.Read(ctx, []string{"a"}, nil); err != nil || !reflect.DeepEqual(got, rows) {
		t.Errorf("read %v, %v", got, err)
	}
	if err := s.Write(ctx, []string{"a"}, nil, [][]int64{{7}}); err != nil { // no stamp, no check
		t.Error(err)
	}
	if got, err := local.Read(ctx, []string{"a"}, nil); err != nil || !reflect.DeepEqual(got, [][]int64{{7}}) {
		t.Errorf("the store itself has %v, %v", got, err)
	}
	listener.Close()
	<-served
	if err := s.Write(ctx, []string{"a"}, nil, rows); err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, ErrUnwritten) {
		t.Errorf("a write to nobody: %v", err) // nobody knows
	}
	if err := errors.Join(s.Close(), local.Close()); err != nil {
		t.Error(err)
	}
}
