package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// instant is a time of the monotonic clock of the machine, in nanoseconds. All processes share it.
type instant int64

func now() instant {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // It fails for an unknown clock only.
	return instant(t.Nano())
}

// since returns the time that has passed.
func (i instant) since() time.Duration { return now().sub(i) }

func (i instant) sub(earlier instant) time.Duration { return time.Duration(i - earlier) }
