package transport

import (
	"unicode"
	"unicode/utf8"
)

// Bounds of the fields; lengths in bytes, durations in milliseconds.
const (
	MaxBody        = 64 << 10
	MaxName        = 512
	MaxOwner       = 256
	MaxTask        = 256
	MaxSession     = 128
	MaxReason      = 1024
	MaxAddress     = 256
	MaxWord        = 64  // mode, role
	MaxKey         = 256 // Idempotency-Key
	MaxLocks       = 64  // in one acquire
	MaxLimit       = 1_000_000
	MaxRequest     = 1<<53 - 1
	MaxAbove       = 1 << 52
	MinTTLMS       = 500
	MaxTTLMS       = 24 * 60 * 60 * 1000
	DefaultTTLMS   = 15_000
	MaxWaitMS      = 300_000
	maxFieldInText = 64 // how much of an unknown field's name an error repeats
)

// numberBounds gives the range of a number by its field's name on the wire,
// which means the same in every message. The decoder checks what is present
// with it, Validate what is not zero.
var numberBounds = map[string]struct{ low, high int64 }{
	"ttl_ms":  {MinTTLMS, MaxTTLMS},
	"wait_ms": {0, MaxWaitMS},
	"limit":   {1, MaxLimit},
	"request": {1, MaxRequest},
	"done":    {0, MaxRequest},
	"token":   {1, int64(MaxToken)},
	"above":   {1, MaxAbove},
}

// textBounds gives the greatest length of a text likewise.
var textBounds = map[string]int{
	"name":    MaxName,
	"mode":    MaxWord,
	"owner":   MaxOwner,
	"task":    MaxTask,
	"session": MaxSession,
	"reason":  MaxReason,
	"to":      MaxName,
	"address": MaxAddress,
	"role":    MaxWord,
}

// checkNumber says whether the number may stand in the field called name, found
// at path.
func checkNumber(path, name string, value int64) *Error {
	if bounds, ok := numberBounds[name]; ok && (value < bounds.low || value > bounds.high) {
		return invalid(path, "must be from %d to %d", bounds.low, bounds.high)
	}
	return nil
}

// checkText says whether the text may stand in the field called name, found at
// path: 1 byte to its greatest length of UTF-8 without control characters
// (C0, DEL and C1, which corrupt terminals and logs).
func checkText(path, name, text string) *Error {
	if text == "" {
		return invalid(path, "must not be empty")
	}
	if most, ok := textBounds[name]; ok && len(text) > most {
		return invalid(path, "must have at most %d bytes, has %d", most, len(text))
	}
	if !utf8.ValidString(text) {
		return invalid(path, "must be UTF-8")
	}
	for _, r := range text {
		if unicode.IsControl(r) {
			return invalid(path, "must not contain control characters, has %U", r)
		}
	}
	return nil
}

// ValidateName checks the name of a lock that came otherwise than in a body, as
// in a query; field is what to call it. The error is an *Error.
func ValidateName(field, name string) error {
	return asError(checkText(field, "name", name))
}

// ValidateOwner does so for an owner.
func ValidateOwner(field, owner string) error {
	return asError(checkText(field, "owner", owner))
}

// ValidateKey checks an Idempotency-Key: 1 to MaxKey visible ASCII characters.
// The error is an *Error.
func ValidateKey(key string) error { return asError(checkKey(key)) }

func checkKey(key string) *Error {
	if key == "" || len(key) > MaxKey {
		return invalid(HeaderIdempotencyKey, "must have 1 to %d characters, has %d", MaxKey, len(key))
	}
	for _, c := range []byte(key) {
		if c < '!' || c > '~' {
			return invalid(HeaderIdempotencyKey, "must be visible ASCII")
		}
	}
	return nil
}

// asError keeps a nil *Error from becoming an error that is not nil.
func asError(err *Error) error {
	if err == nil {
		return nil
	}
	return err
}
