//go:build race

// Package race reports whether the race detector is on. It takes five to ten times the processor
// time, so that tests give a bound of processor time more room.
package race

// Factor is the room for a bound of processor time.
const Factor = 10
