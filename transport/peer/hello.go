package peer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// The handshake is one frame each way. The layout of the header, and the place and kind of the checksum, are the
// same in every version, so that two versions can always tell each other that they differ.
//
//	magic    5 bytes  0xF1 "PAWL" of a hello, 0xF1 "pawl" of an answer (an echo server is no peer)
//	version  1 byte
//	code     1 byte   hello: kind; answer: refusal, 0 = accepted
//	length   2 bytes  of the body, big endian
//	body              hello: nonce, cluster, name, incarnation, wanted incarnation
//	                  answer: the hello's nonce, cluster, name, incarnation, reason
//	checksum 4 bytes  CRC-32C of all before it
//
// A nonce is 16 bytes as they are; the other fields are a length byte and that many bytes. No HTTP method and no TLS
// record begins with 0xF1.
const (
	helloMagic  = "\xf1PAWL"
	answerMagic = "\xf1pawl"

	protocolVersion = 1

	headerBytes   = len(helloMagic) + 4
	checksumBytes = 4
	nonceBytes    = 16
	maxReason     = 128

	// MaxHandshakeBytes bounds what either side reads before a connection is accepted.
	MaxHandshakeBytes = 512
	maxBody           = MaxHandshakeBytes - headerBytes - checksumBytes
)

// kind is what a connection carries once it is accepted.
type kind byte

const (
	kindRaft kind = 1
	kindHTTP kind = 2
)

func (k kind) String() string {
	switch k {
	case kindRaft:
		return "raft"
	case kindHTTP:
		return "http"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

type nonce [nonceBytes]byte

// hello is what a dialler says first.
type hello struct {
	kind    kind
	nonce   nonce
	cluster string   // "" while the dialler knows none
	from    Identity // the dialler
	wanted  string   // the incarnation that must answer, "" = whoever does
}

// answer is what the listener says to it.
type answer struct {
	code    refusal
	nonce   nonce // the hello's: this answer belongs to it
	cluster string
	from    Identity // the listener
	reason  string
}

func (h hello) frame() []byte {
	body := append([]byte(nil), h.nonce[:]...)
	body = appendField(body, h.cluster)
	body = appendField(body, h.from.Name)
	body = appendField(body, h.from.Incarnation)
	body = appendField(body, h.wanted)
	return sealFrame(helloMagic, byte(h.kind), body)
}

func (a answer) frame() []byte {
	body := append([]byte(nil), a.nonce[:]...)
	body = appendField(body, a.cluster)
	body = appendField(body, a.from.Name)
	body = appendField(body, a.from.Incarnation)
	body = appendField(body, a.reason[:min(len(a.reason), maxReason)])
	return sealFrame(answerMagic, byte(a.code), body)
}

// parseHello judges a whole frame that readFrame has read.
func parseHello(frame []byte) (hello, refusal) {
	if frame[len(helloMagic)] != protocolVersion {
		return hello{}, refusedVersion
	}
	rest, ok := openFrame(frame)
	if !ok {
		return hello{}, refusedMalformed
	}
	fields := fieldReader{rest: rest}
	h := hello{
		kind:    kind(frame[len(helloMagic)+1]),
		nonce:   fields.nonce(),
		cluster: fields.next(MaxClusterBytes),
		from:    Identity{Name: fields.next(MaxNameBytes), Incarnation: fields.next(incarnationBytes)},
		wanted:  fields.next(incarnationBytes),
	}
	switch {
	case !fields.done(), !validCluster(h.cluster), h.from.Validate() != nil, h.wanted != "" && !validIncarnation(h.wanted):
		return hello{}, refusedMalformed
	case h.kind != kindRaft && h.kind != kindHTTP:
		return h, refusedKind
	}
	return h, accepted
}

// parseAnswer judges a whole frame that readFrame has read.
func parseAnswer(frame []byte) (answer, error) {
	if frame[len(answerMagic)] != protocolVersion {
		// Of another version only the header can be read, and it is enough.
		return answer{code: refusedVersion}, nil
	}
	rest, ok := openFrame(frame)
	if !ok {
		return answer{}, ErrMalformed
	}
	fields := fieldReader{rest: rest}
	a := answer{
		code:    refusal(frame[len(answerMagic)+1]),
		nonce:   fields.nonce(),
		cluster: fields.next(MaxClusterBytes),
		from:    Identity{Name: fields.next(MaxNameBytes), Incarnation: fields.next(incarnationBytes)},
		reason:  printable(fields.next(maxReason)),
	}
	if !fields.done() || !validCluster(a.cluster) || a.from.Validate() != nil {
		return answer{}, ErrMalformed
	}
	return a, nil
}

// readFrame reads exactly one frame and not a byte beyond it. It looks at the first byte alone, so that whoever
// speaks something else is turned away at once instead of holding its place until the deadline.
func readFrame(r io.Reader, magic string) ([]byte, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:1]); err != nil {
		return nil, err
	}
	if header[0] != magic[0] {
		return nil, ErrNotPawl
	}
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return nil, err
	}
	if string(header[:len(magic)]) != magic {
		return nil, ErrNotPawl
	}
	length := int(binary.BigEndian.Uint16(header[headerBytes-2:]))
	if length > maxBody {
		return nil, ErrMalformed
	}
	frame := make([]byte, headerBytes+length+checksumBytes)
	copy(frame, header[:])
	if _, err := io.ReadFull(r, frame[headerBytes:]); err != nil {
		return nil, err
	}
	return frame, nil
}

func sealFrame(magic string, code byte, body []byte) []byte {
	frame := make([]byte, 0, headerBytes+len(body)+checksumBytes)
	frame = append(frame, magic...)
	frame = append(frame, protocolVersion, code)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(body)))
	frame = append(frame, body...)
	return binary.BigEndian.AppendUint32(frame, checksum(frame))
}

// openFrame gives the body of a frame whose checksum is right.
func openFrame(frame []byte) (body []byte, ok bool) {
	end := len(frame) - checksumBytes
	if binary.BigEndian.Uint32(frame[end:]) != checksum(frame[:end]) {
		return nil, false
	}
	return frame[headerBytes:end], true
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func appendField(b []byte, field string) []byte {
	b = append(b, byte(len(field)))
	return append(b, field...)
}

// fieldReader takes a body apart; after the first field that does not fit it gives only zero values.
type fieldReader struct {
	rest   []byte
	failed bool
}

func (f *fieldReader) take(n int) []byte {
	if f.failed || n > len(f.rest) {
		f.failed = true
		return nil
	}
	taken := f.rest[:n]
	f.rest = f.rest[n:]
	return taken
}

func (f *fieldReader) nonce() (n nonce) {
	copy(n[:], f.take(nonceBytes))
	return n
}

func (f *fieldReader) next(limit int) string {
	length := f.take(1)
	if f.failed || int(length[0]) > limit {
		f.failed = true
		return ""
	}
	return string(f.take(int(length[0])))
}

// done says that every field was there and nothing behind the last.
func (f *fieldReader) done() bool { return !f.failed && len(f.rest) == 0 }

// printable keeps another node's words from writing control characters into our log.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
