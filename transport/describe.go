package transport

import (
	"cmp"
	"maps"
	"slices"
)

// What the decoder and Validate hold against a request is told here to whoever
// describes the API, so that there is one table of it and not two.

// NumberBounds gives the range of the number in fields of this name; with orZero
// it may be 0 besides. ok is false for one without bounds of its own.
func NumberBounds(field string) (low, high int64, orZero, ok bool) {
	b, ok := numberBounds[field]
	return b.low, b.high, b.orZero, ok
}

// TextBound gives how many bytes a text in fields of this name may have at most.
func TextBound(field string) (most int, ok bool) {
	most, ok = textBounds[field]
	return most, ok
}

// Codes gives every code, by status and name.
func Codes() []Code {
	return slices.SortedFunc(maps.Keys(table), func(a, b Code) int {
		return cmp.Or(cmp.Compare(table[a].Status, table[b].Status), cmp.Compare(a, b))
	})
}
