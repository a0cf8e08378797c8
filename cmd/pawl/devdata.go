package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// devRecord says which cluster a directory of pawl dev was made for. The nodes know each other by name and address, so
// another number of nodes or other ports would not be this cluster started again.
type devRecord struct {
	Nodes int `json:"nodes"`
	Port  int `json:"port"`
}

const devRecordName = "pawl-dev.json"

func nodeDirectory(data, name string) string { return filepath.Join(data, name) }

// claimDevData makes data the directory of the cluster, or checks that it is.
func claimDevData(data string, wanted devRecord) error {
	path := filepath.Join(data, devRecordName)
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeDevData(data, wanted)
	case err != nil:
		return fmt.Errorf("reading the data directory: %w", err)
	}
	var made devRecord
	if err := json.Unmarshal(content, &made); err != nil {
		return fmt.Errorf("%s is damaged (%w): choose another --data, or remove the directory and lose its locks", path, err)
	}
	switch {
	case made.Nodes != wanted.Nodes:
		return usageError{fmt.Errorf("%s holds a cluster of %d nodes: start it with --nodes %d, or choose another --data", data, made.Nodes, made.Nodes)}
	case made.Port != wanted.Port:
		return usageError{fmt.Errorf("%s holds a cluster at port %d: start it with --port %d, or choose another --data", data, made.Port, made.Port)}
	}
	return nil
}

// makeDevData records the cluster before any node is made. A directory with something else in it is left alone.
func makeDevData(data string, wanted devRecord) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	entries, err := os.ReadDir(data)
	if err != nil {
		return fmt.Errorf("reading the data directory: %w", err)
	}
	temporary := devRecordName + ".tmp"
	for _, entry := range entries {
		if entry.Name() != temporary {
			return usageError{fmt.Errorf("%s is not empty and not the data of pawl dev (there is %s): choose another --data", data, entry.Name())}
		}
	}
	content, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("recording the cluster: %w", err)
	}
	// As a whole or not at all: half a record would make the directory useless.
	if err := os.WriteFile(filepath.Join(data, temporary), append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording the cluster: %w", err)
	}
	if err := os.Rename(filepath.Join(data, temporary), filepath.Join(data, devRecordName)); err != nil {
		return fmt.Errorf("recording the cluster: %w", err)
	}
	return nil
}
