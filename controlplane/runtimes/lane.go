package runtimes

import "time"

// lane is the state of a runtime that is not ready. The lock of its book guards it.
type lane struct {
	waiting time.Time // since when the runtime is not ready, zero if it is
	fails   bool      // The failing lane tries it again.
}

// beginWaiting begins the time for which the runtime is not ready, unless that time has begun. It
// returns how long ago that was.
func (l *lane) beginWaiting() (age time.Duration) {
	if l.waiting.IsZero() {
		l.waiting = time.Now()
	}
	return time.Since(l.waiting)
}

// endWait is for a runtime that is ready.
func (l *lane) endWait() { l.waiting = time.Time{} }
