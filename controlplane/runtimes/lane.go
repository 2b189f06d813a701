package runtimes

import "time"

// lane is the state of a runtime that is not ready. The lock of its book guards it.
type lane struct {
	waiting time.Time // since when the runtime is not ready, zero if it is
	fails   bool      // The failing lane tries it again.
}

// noteWaiting begins the time for which the runtime is not ready, unless that time has begun.
func (l *lane) noteWaiting() {
	if l.waiting.IsZero() {
		l.waiting = time.Now()
	}
}

// age is for how long the runtime has not been ready, 0 if it is.
func (l *lane) age() time.Duration {
	if l.waiting.IsZero() {
		return 0
	}
	return time.Since(l.waiting)
}

// endWait is for a runtime that is ready.
func (l *lane) endWait() { l.waiting = time.Time{} }
