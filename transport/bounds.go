package transport

import (
	"maps"
	"slices"
	"strings"
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
	MaxPriority    = 1000 // and as much below 0
	MaxValue       = 4096
	MaxLabels      = 16 // of a session
	MaxLabel       = 64 // of a label's key
	MaxLabelValue  = 256
	MinHoldMS      = 500 // of a maximum hold, which lasts at most MaxTTLMS
	MinTTLMS       = 500
	MaxTTLMS       = 24 * 60 * 60 * 1000
	DefaultTTLMS   = 15_000
	MaxWaitMS      = 300_000
	maxFieldInText = 64 // how much of an unknown field's name an error repeats
)

// numberBounds gives the range of a number by its field's name on the wire,
// which means the same in every message. The decoder checks what is present
// with it, Validate what is not zero.
var numberBounds = map[string]struct {
	low, high int64
	orZero    bool // 0 is none, and may be said
}{
	"ttl_ms":        {MinTTLMS, MaxTTLMS, false},
	"wait_ms":       {0, MaxWaitMS, false},
	"limit":         {1, MaxLimit, false},
	"request":       {1, MaxRequest, false},
	"of":            {1, MaxRequest, false},
	"done":          {0, MaxRequest, false},
	"token":         {1, int64(MaxToken), false},
	"above":         {1, MaxAbove, false},
	"priority":      {-MaxPriority, MaxPriority, false},
	"max_hold_ms":   {MinHoldMS, MaxTTLMS, true},
	"lock_delay_ms": {0, MaxTTLMS, false},
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
	"value":   MaxValue,
}

// checkNumber says whether the number may stand in the field called name, found
// at path.
func checkNumber(path, name string, value int64) *Error {
	bounds, ok := numberBounds[name]
	switch {
	case !ok || (value >= bounds.low && value <= bounds.high) || (bounds.orZero && value == 0):
		return nil
	case bounds.orZero:
		return invalid(path, "must be 0 or from %d to %d", bounds.low, bounds.high)
	}
	return invalid(path, "must be from %d to %d", bounds.low, bounds.high)
}

// checkText says whether the text may stand in the field called name, found at
// path: 1 byte to its greatest length of UTF-8 without control characters
// (C0, DEL and C1, which corrupt terminals and logs).
func checkText(path, name, text string) *Error {
	if name == "value" {
		return checkValue(path, text)
	}
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

// checkValue says whether the text may be kept with a hold: up to MaxValue bytes
// of UTF-8 that is the holder's own business, lines and tabs included. Only NUL
// is refused: for many readers a text ends there, and what they compared would
// not be what was kept. Whoever shows a value to people must mind control
// characters.
func checkValue(path, text string) *Error {
	switch {
	case len(text) > MaxValue:
		return invalid(path, "must have at most %d bytes, has %d", MaxValue, len(text))
	case !utf8.ValidString(text):
		return invalid(path, "must be UTF-8")
	case strings.IndexByte(text, 0) >= 0:
		return invalid(path, "must not contain NUL")
	}
	return nil
}

// checkLabels says whether a session may have these labels: at most MaxLabels,
// each with a key like any other text of at most MaxLabel bytes, and a value of at
// most MaxLabelValue that may be empty.
func checkLabels(path string, labels map[string]string) *Error {
	if len(labels) > MaxLabels {
		return invalid(path, "must have at most %d keys", MaxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := checkLabel(path, key, labels[key]); err != nil {
			return err
		}
	}
	return nil
}

func checkLabel(path, key, value string) *Error {
	here := path + "." + shorten(key)
	if len(key) > MaxLabel {
		return invalid(here, "must have a key of at most %d bytes, has %d", MaxLabel, len(key))
	}
	if err := checkText(here, "", key); err != nil {
		return err
	}
	if len(value) > MaxLabelValue {
		return invalid(here, "must have at most %d bytes, has %d", MaxLabelValue, len(value))
	}
	if value == "" {
		return nil
	}
	return checkText(here, "", value)
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
