package peer

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func goodHello() hello {
	return hello{
		kind: kindRaft, nonce: nonce{1, 2, 3}, cluster: testCluster, from: identity("n2", 2),
		wanted: identity("n1", 1).Incarnation,
	}
}

func goodAnswer() answer {
	return answer{nonce: nonce{1, 2, 3}, cluster: testCluster, from: identity("n1", 1), reason: "none"}
}

// readHello is all that stands between hostile bytes and the port's own decisions.
func readHello(b []byte) (hello, refusal, error) {
	frame, err := readFrame(bytes.NewReader(b), helloMagic)
	if err != nil {
		return hello{}, refusedMalformed, err
	}
	h, code := parseHello(frame)
	return h, code, nil
}

func TestHelloRoundTrip(t *testing.T) {
	longest := hello{
		kind: kindHTTP, cluster: strings.Repeat("c", MaxClusterBytes), wanted: identity("", 3).Incarnation,
		from: Identity{strings.Repeat("n", MaxNameBytes), identity("", 4).Incarnation},
	}
	for _, want := range []hello{goodHello(), longest, {kind: kindHTTP, from: identity("n2", 2)}} {
		frame := want.frame()
		if len(frame) > MaxHandshakeBytes {
			t.Errorf("hello of %d bytes", len(frame))
		}
		if got, code, err := readHello(frame); err != nil || code != accepted || got != want {
			t.Errorf("read %+v, %v, %v; want %+v", got, code, err, want)
		}
	}
	want := goodAnswer()
	want.reason = strings.Repeat("x", 2*maxReason)
	frame := want.frame()
	if len(frame) > MaxHandshakeBytes {
		t.Errorf("answer of %d bytes", len(frame))
	}
	want.reason = want.reason[:maxReason]
	if got, err := parseAnswer(frame); err != nil || got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

func TestEveryTruncatedHelloIsIncomplete(t *testing.T) {
	frame := goodHello().frame()
	for n := range frame {
		_, _, err := readHello(frame[:n])
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
}

func TestEveryFlippedBitIsRefused(t *testing.T) {
	frame := goodHello().frame()
	answer := goodAnswer().frame()
	for i := range 8 * len(frame) {
		flipped := bytes.Clone(frame)
		flipped[i/8] ^= 1 << (i % 8)
		if _, code, err := readHello(flipped); err == nil && code == accepted {
			t.Errorf("hello with bit %d of byte %d flipped was taken", i%8, i/8)
		}
	}
	for i := range 8 * len(answer) {
		flipped := bytes.Clone(answer)
		flipped[i/8] ^= 1 << (i % 8)
		frame, err := readFrame(bytes.NewReader(flipped), answerMagic)
		if err != nil {
			continue
		}
		if a, err := parseAnswer(frame); err == nil && a.code == accepted {
			t.Errorf("answer with bit %d of byte %d flipped was taken", i%8, i/8)
		}
	}
}

// A field that is out of bounds is refused although the frame's checksum is right.
func TestHelloFieldsAreBounded(t *testing.T) {
	body := func(fields ...string) []byte {
		b := make([]byte, nonceBytes)
		for _, field := range fields {
			b = appendField(b, field)
		}
		return b
	}
	name, life := "n2", identity("", 2).Incarnation
	for what, b := range map[string][]byte{
		"empty body":               {},
		"nonce only":               body(),
		"field missing":            body(testCluster, name, life),
		"field too many":           body(testCluster, name, life, life, ""),
		"byte too many":            append(body(testCluster, name, life, life), 0),
		"length beyond the end":    append(body(testCluster, name, life), 16, 'a'),
		"cluster too long":         body(strings.Repeat("c", MaxClusterBytes+1), name, life, life),
		"cluster with a newline":   body("a\nb", name, life, life),
		"no name":                  body(testCluster, "", life, life),
		"name too long":            body(testCluster, strings.Repeat("n", MaxNameBytes+1), life, life),
		"name with a slash":        body(testCluster, "a/b", life, life),
		"incarnation too short":    body(testCluster, name, life[1:], life),
		"incarnation in capitals":  body(testCluster, name, strings.Repeat("A", 16), life),
		"wanted incarnation wrong": body(testCluster, name, life, "x"),
	} {
		if _, code, err := readHello(sealFrame(helloMagic, byte(kindRaft), b)); err != nil || code != refusedMalformed {
			t.Errorf("%s: code %d, %v", what, code, err)
		}
	}
	if _, code, _ := readHello(sealFrame(helloMagic, 77, body(testCluster, name, life, life))); code != refusedKind {
		t.Errorf("kind 77: code %d", code)
	}
	huge := sealFrame(helloMagic, byte(kindRaft), make([]byte, maxBody+1))
	if _, _, err := readHello(huge); !errors.Is(err, ErrMalformed) {
		t.Errorf("body beyond the bound: %v", err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(goodHello().frame())
	f.Add(goodAnswer().frame())
	f.Add([]byte(helloMagic))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		reader := bytes.NewReader(b)
		frame, err := readFrame(reader, helloMagic)
		if err != nil {
			return
		}
		if read := len(b) - reader.Len(); read != len(frame) || read > MaxHandshakeBytes {
			t.Fatalf("read %d bytes for a frame of %d", read, len(frame))
		}
		h, code := parseHello(frame)
		if code == accepted && !bytes.Equal(h.frame(), frame) {
			t.Fatalf("%x was taken for %+v, which is written as %x", frame, h, h.frame())
		}
		if answer, err := readFrame(bytes.NewReader(b), answerMagic); err == nil {
			parseAnswer(answer) // must not panic
		}
	})
}
