//go:build !race

package fsm

const raced = false
