package fsm

import (
	"math"
	"math/bits"
)

// bitset is a set of small numbers.
type bitset []uint64

// end is above every number in a bitset.
const end = math.MaxInt32

func bitsetWords(n int) int { return (n + 63) / 64 }

// empty returns an empty set of so many words, in the same memory when there is enough.
func (b bitset) empty(words int) bitset {
	if cap(b) < words {
		return make(bitset, words)
	}
	clear(b[:words])
	return b[:words]
}

func (b bitset) set(i int32)   { b[i/64] |= 1 << (i % 64) }
func (b bitset) clear(i int32) { b[i/64] &^= 1 << (i % 64) }

func (b bitset) put(i int32, in bool) {
	if in {
		b.set(i)
	} else {
		b.clear(i)
	}
}

// next returns the smallest number in the set that is not below from, or end.
func (b bitset) next(from int32) int32 {
	w := int(from / 64)
	if w >= len(b) {
		return end
	}
	for word := b[w] &^ (1<<(from%64) - 1); ; word = b[w] {
		if word != 0 {
			return int32(w*64 + bits.TrailingZeros64(word))
		}
		if w++; w == len(b) {
			return end
		}
	}
}

// count returns how many numbers in the set are below a number.
func (b bitset) count(below int32) (n int) {
	for _, word := range b[:below/64] {
		n += bits.OnesCount64(word)
	}
	if below%64 != 0 {
		n += bits.OnesCount64(b[below/64] & (1<<(below%64) - 1))
	}
	return n
}
