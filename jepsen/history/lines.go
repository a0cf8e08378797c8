package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds the length of one Op in a file, in bytes; maxOps how many a file may have.
const (
	maxLine = 1 << 20
	maxOps  = 10_000_000
)

// WriteLines writes one JSON object for each Op, each on a line of its own.
func WriteLines(w io.Writer, ops []Op) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	for _, op := range ops {
		if err := encoder.Encode(op); err != nil {
			return fmt.Errorf("writing operation %d: %w", op.Index, err)
		}
	}
	return buffered.Flush()
}

// ReadLines reads what WriteLines has written, and refuses anything else.
func ReadLines(r io.Reader) ([]Op, error) {
	return readLines(r, func(line []byte) (op Op, written []byte, err error) {
		if err := json.Unmarshal(line, &op); err != nil {
			return Op{}, nil, err
		}
		written, err = json.Marshal(op)
		return op, written, err
	})
}

// readLines reads Ops, one in a line. A line must be byte for byte what would be written for its Op: so no unknown,
// repeated or misspelt field, and nothing behind it, can go unnoticed.
func readLines(r io.Reader, parse func(line []byte) (op Op, written []byte, err error)) ([]Op, error) {
	var ops []Op
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		number := len(ops) + 1
		if number > maxOps {
			return nil, errors.New("the history is too long")
		}
		op, written, err := parse(scanner.Bytes())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if !bytes.Equal(written, scanner.Bytes()) {
			return nil, fmt.Errorf("line %d is not as it would be written: %s", number, written)
		}
		if op.Index != len(ops) {
			return nil, fmt.Errorf("line %d has index %d", number, op.Index)
		}
		ops = append(ops, op)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("after line %d: %w", len(ops), err)
	}
	return ops, nil
}
