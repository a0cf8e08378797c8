package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	databaseName = "raft.db"
	// lockWait is how long to wait for another process to let go of the file.
	lockWait = time.Second
	// repair is what a person can do about a directory that cannot be trusted.
	repair = "remove this node from the cluster, wipe the directory, add it again"
)

// damaged makes the message for a file that cannot be trusted.
func damaged(path string, why error) error {
	return fmt.Errorf("%s: %w: %w; %s", path, ErrDamaged, why, repair)
}

// openDatabase opens the file of log and votes, which is checked page by page before bbolt maps it: bbolt answers damage
// with panics and faults, some of them in goroutines where nothing can catch them (C19). fresh says that the file may
// be missing or empty; otherwise bbolt would make a new one and the node would have forgotten its votes.
func openDatabase(dir string, fresh bool) (*raftboltdb.BoltStore, error) {
	path := filepath.Join(dir, databaseName)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && fresh:
	case errors.Is(err, fs.ErrNotExist):
		return nil, damaged(path, errors.New("the file is missing, but this node is not new"))
	case err != nil:
		return nil, fmt.Errorf("looking at the log store: %w", err)
	case info.Size() == 0 && fresh: // a first start that was interrupted
	case info.Size() == 0:
		return nil, damaged(path, errors.New("the file is empty, but this node is not new"))
	default:
		if err := checkDatabase(path); err != nil {
			return nil, err
		}
	}
	store, err := openBolt(path)
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	}
	return store, err
}

// checkDatabase checks the pages while it holds the file's lock: a file that somebody is writing always looks damaged.
func checkDatabase(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the log store: %w", err)
	}
	defer func() { _ = file.Close() }()
	for waited := time.Duration(0); ; waited += 50 * time.Millisecond {
		free, err := tryLock(file)
		if err != nil {
			return fmt.Errorf("locking %s: %w", path, err)
		}
		if free {
			break
		}
		if waited >= lockWait {
			return fmt.Errorf("%s: %w", path, ErrInUse)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := checkPages(file); err != nil {
		return damaged(path, err)
	}
	return nil
}

func openBolt(path string) (store *raftboltdb.BoltStore, err error) {
	// The second net under checkPages: what still panics or faults in this goroutine becomes the same plain message.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if caught := recover(); caught != nil {
			err = damaged(path, fmt.Errorf("%v", caught))
		}
	}()
	store, err = raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: lockWait,
			// Without these two a log that has been cut once costs 16 times as much per write (measured, C23).
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
		},
		NoSync: false, // never: what is acknowledged is on disk (C22)
	})
	if err != nil {
		return nil, fmt.Errorf("opening the log store %s: %w", path, err)
	}
	return store, nil
}
