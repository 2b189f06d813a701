package outbox

import (
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pause makes a lane wait while its manager cannot be reached. It is off until a call fails as a
// whole. Then it waits until ends, lets one call through as a probe, and waits again if that fails,
// for longer each time. A call that the manager takes switches it off.
//
// The dispatcher begins the calls, their goroutines report the results, and [Outbox.Retry] ends the
// wait early. All hold the lock of the lane.
type pause struct {
	// failures of whole calls, in a row. The pause is on if there are any.
	failures int
	failing  time.Time // when the first of them ended.
	since    time.Time // when the pause began. A call of Retry does not change it.
	problem  error     // of the last failure, nil while the pause is off.

	began   time.Time // the present wait.
	ends    time.Time
	probing bool      // the call that finds out whether the manager is back is under way.
	retried time.Time // last call of Retry.

	noted bool // the log has a line about this pause.

	// interruption is the last pause that counts, for heartbeats. It is zero before there was one.
	interruption core.Interruption
}

const (
	// leastInterruption is the length of a pause that counts as an interruption.
	leastInterruption = time.Second
	// maxProblem bounds the text of the error of an interruption, in bytes.
	maxProblem = 256
)

func (p *pause) isOn() bool { return p.failures > 0 }

// untilCall returns how long to wait before the next call. It is negative until the probe has
// ended.
func (p *pause) untilCall(now time.Time) time.Duration {
	switch {
	case !p.isOn():
		return 0
	case p.probing:
		return -1
	default:
		return max(p.ends.Sub(now), 0)
	}
}

// beginCall makes a call that begins while the pause is on its probe.
func (p *pause) beginCall() { p.probing = p.isOn() }

func (p *pause) endProbe() { p.probing = false }

// beganAfter reports whether the pause began after a call did. The failure of that call has the
// cause of the pause, so it does not count again.
func (p *pause) beganAfter(started time.Time) bool { return started.Before(p.began) }

// noteFailure begins the wait after a failed call that began at started, and returns its length.
// The failures before the last call of Retry do not count, because their cause may be gone.
func (p *pause) noteFailure(opts *Options, err error, started, now time.Time) (wait time.Duration) {
	if !p.isOn() {
		p.since = now
	}
	isFirst := !p.isOn() || !p.began.After(p.retried)
	if isFirst {
		p.failing = now
		p.failures = 0
	}

	p.failures++
	p.problem = err

	longest := opts.longestPause(err, now.Sub(p.failing))
	wait = p.waitAfter(opts, p.failures, longest, err, started)
	p.began = now
	p.ends = now.Add(wait)
	return wait
}

// waitAfter returns how long to wait after so many failures in a row, of a lane or of one event. It
// is 0 if the call began before Retry was called, because its answer is about replaced key
// material.
func (p *pause) waitAfter(
	opts *Options, failures int, longest time.Duration, err error, started time.Time,
) time.Duration {
	if p.retried.After(started) {
		return 0
	}
	return opts.backoff(failures, longest, err)
}

// noteSuccess switches the pause off.
func (p *pause) noteSuccess(now time.Time) {
	if length := now.Sub(p.since); p.isOn() && length >= leastInterruption {
		p.noteInterruption(length, now)
	}
	p.failures = 0
	p.problem = nil
	p.probing = false
}

// noteInterruption keeps why the pause was on. A wall clock that was set meanwhile does not change
// the length.
func (p *pause) noteInterruption(length time.Duration, now time.Time) {
	text := p.problem.Error()
	p.interruption = core.Interruption{
		Reason: core.ReasonOf(p.problem),
		Error:  strings.ToValidUTF8(text[:min(len(text), maxProblem)], ""),
		Since:  now.Add(-length),
		Until:  now,
	}
}

// endWait ends the wait now, and that after each call that has begun before.
func (p *pause) endWait(now time.Time) {
	p.ends = now
	p.retried = now
}
