package fsm

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBitset compares bitsets with lists of numbers, at all sizes around the ends of words.
func TestBitset(t *testing.T) {
	for size := int32(1); size <= 200; size++ {
		r := rand.New(rand.NewPCG(uint64(size), 1))
		b := make(bitset, bitsetWords(int(size)))
		in := make([]bool, size)
		for range 50 {
			i := r.Int32N(size)
			in[i] = r.IntN(3) > 0
			b.put(i, in[i])
			at := r.Int32N(size + 1)
			next, count := int32(slices.Index(in[at:], true)), 0
			if next += at; next < at {
				next = end
			}
			for _, v := range in[:at] {
				if v {
					count++
				}
			}
			if b.next(at) != next || b.count(at) != count {
				t.Fatalf("size %d, %v: from %d the next is %d, want %d; %d below, want %d", size, in, at, b.next(at), next, b.count(at), count)
			}
		}
	}
	if b := (bitset{7, 7, 7}).empty(2); len(b) != 2 || b.next(0) != end {
		t.Errorf("%v", b)
	}
}
