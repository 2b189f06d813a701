package listener

import "runtime"

// defaultHandshakes leaves half of the processors to those who are connected.
func defaultHandshakes() int { return max(runtime.GOMAXPROCS(0)/2, 1) } //nolint:mnd // A half.
