package runtimes

import "time"

// lane is the state of a runtime that is not ready. The lock of its book guards it.
type lane struct {
	waiting time.Time // since when the runtime is not ready, zero if it is
	fails   bool      // The failing lane tries it again.
}

// beginWait returns for how long the runtime has not been ready. The first call begins that time.
func (l *lane) beginWait() (age time.Duration) {
	if l.waiting.IsZero() {
		l.waiting = time.Now()
	}
	return time.Since(l.waiting)
}

// endWait is for a runtime that is ready.
func (l *lane) endWait() { l.waiting = time.Time{} }
