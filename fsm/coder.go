package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// errMalformed is wrapped by every decoding error.
var errMalformed = errors.New("malformed")

// checksums use the Castagnoli polynomial, which common processors compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// coder writes or reads one value after another. Each type describes its fields once, in a method that serves both
// directions, so that what is written cannot differ from what is read. After the first error nothing more happens.
//
// Fields are append-only: one that is added after a release is read only when bytes are left, so that old bytes stay
// readable, and a decoder that does not know a field finds bytes left over and refuses.
type coder struct {
	reading bool
	buf     []byte // what has been written, or what is left to read
	err     error
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
	}
}

// number codes v as a varint in its shortest form.
func (c *coder) number(v *uint64) {
	if c.err != nil {
		return
	}
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, *v)
		return
	}
	n, size := binary.Uvarint(c.buf)
	if size <= 0 || (size > 1 && c.buf[size-1] == 0) {
		c.fail("number")
		return
	}
	*v, c.buf = n, c.buf[size:]
}

// bounded codes v, which must be at most limit.
func (c *coder) bounded(v *uint64, limit uint64, what string) {
	c.number(v)
	if c.err == nil && *v > limit {
		c.fail("%s %d is above %d", what, *v, limit)
	}
}

func boundedAs[T ~uint8 | ~uint16 | ~uint32](c *coder, v *T, limit uint64, what string) {
	n := uint64(*v)
	c.bounded(&n, limit, what)
	if c.reading && c.err == nil { // a writer only reads: others look at a snapshot's objects meanwhile
		*v = T(n)
	}
}

// length codes the length of something that is at most limit long and takes at least one byte a piece.
func (c *coder) length(n int, limit int, what string) int {
	v := uint64(n)
	c.bounded(&v, uint64(limit), what)
	if c.err == nil && c.reading && v > uint64(len(c.buf)) {
		c.fail("%s is cut short", what)
	}
	if c.err != nil {
		return 0
	}
	return int(v)
}

func (c *coder) text(v *string, limit int, what string) {
	n := c.length(len(*v), limit, what)
	if c.err != nil {
		return
	}
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	*v, c.buf = string(c.buf[:n]), c.buf[n:]
}

func (c *coder) flag(v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	c.bounded(&n, 1, "flag")
	if c.reading && c.err == nil {
		*v = n == 1
	}
}

func (c *coder) id(v *ID) {
	if c.err != nil {
		return
	}
	if !c.reading {
		c.buf = append(c.buf, v[:]...)
		return
	}
	if len(c.buf) < len(v) {
		c.fail("id is cut short")
		return
	}
	copy(v[:], c.buf)
	c.buf = c.buf[len(v):]
}

// list codes a slice; an empty one is read as nil.
func list[T any](c *coder, v *[]T, limit int, what string, each func(*coder, *T)) {
	n := c.length(len(*v), limit, what)
	if c.err != nil {
		return
	}
	if c.reading {
		*v = nil
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := range *v {
		each(c, &(*v)[i])
	}
}

// finish returns the error of the whole, for a reader also when bytes are left over.
func (c *coder) finish() error {
	if c.err == nil && c.reading && len(c.buf) > 0 {
		c.fail("%d bytes left over: written by a newer version?", len(c.buf))
	}
	return c.err
}

// seal appends the checksum of b, and unseal takes it off again.
func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

func unseal(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: too short for a checksum", errMalformed)
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("%w: checksum %08x, want %08x: the bytes were damaged", errMalformed, got, sum)
	}
	return body, nil
}
