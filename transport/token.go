package transport

import (
	"errors"
	"strconv"
)

// MaxToken is the largest fencing token: every JSON reader keeps integers below
// 2^53 exact (R10, D03).
const MaxToken Token = 1<<53 - 1

// Token is a fencing token, 1 to MaxToken; 0 means "none". It is written as a
// JSON number and read from a number or a decimal string, and never rounded.
type Token uint64

var errToken = errors.New("a token is a plain decimal integer below 2^53, as a number or a string")

// ParseToken reads a token in its only notation: decimal digits without sign,
// leading zero, point, exponent or space.
func ParseToken(text string) (Token, error) {
	if text == "" || len(text) > 1 && text[0] == '0' {
		return 0, errToken
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, errToken
		}
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil || Token(value) > MaxToken {
		return 0, errToken
	}
	return Token(value), nil
}

// String gives the decimal digits.
func (t Token) String() string { return strconv.FormatUint(uint64(t), 10) }

// UnmarshalJSON accepts a number or a decimal string.
func (t *Token) UnmarshalJSON(data []byte) error {
	text := string(data)
	if len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	value, err := ParseToken(text)
	if err != nil {
		return err
	}
	*t = value
	return nil
}
