package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// HasState says whether a directory that no process has open holds a log entry or a snapshot. Errors are ErrInUse,
// within 2 s, and ErrDamaged.
func HasState(dir string) (has bool, err error) {
	kept, err := os.ReadDir(filepath.Join(dir, snapshotsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the snapshots: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, databaseName)); errors.Is(err, fs.ErrNotExist) {
		return len(kept) > 0, nil
	}
	store, err := openDatabase(dir, true)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	last, err := store.LastIndex()
	if err != nil {
		return false, fmt.Errorf("reading the log: %w", err)
	}
	return last > 0 || len(kept) > 0, nil
}
