package replica

// guard names a guard that test builds can switch off, to see whether the harness finds what it guards against (jepsen/script).
type guard string

const (
	guardD1 guard = "D1"
	guardD2 guard = "D2"
	guardD3 guard = "D3"
	guardD4 guard = "D4"
	guardD7 guard = "D7"
	// guardStop is the watchdog's: a write that failed ends the node, and is never answered.
	guardStop guard = "fail-stop"
)
