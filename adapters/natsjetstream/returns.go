package natsjetstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// returns bounds the refusals that are offered to runtimes. A runtime chooses where its answers go,
// and may confirm none: each offer then takes answerTimeout.
type returns struct {
	// slots bounds the offers at the same time. Beyond it, messages stay with the stream.
	slots chan struct{}

	mu sync.Mutex
	// silent contains the end of the time in which nothing is offered to a runtime.
	silent map[core.RuntimeID]time.Time
}

const (
	// perReturn is the number of messages in memory for which there is one offer.
	perReturn = 8
	// silentFor is the time without offers to a runtime that did not confirm one.
	silentFor = 30 * time.Second
	maxSilent = 16 << 10
)

func newReturns(maxInFlight int) returns {
	return returns{slots: make(chan struct{}, max(maxInFlight/perReturn, 1)), silent: map[core.RuntimeID]time.Time{}}
}

// offerOnce calls ask, unless too many offers wait or a recent offer to the runtime timed out. It
// reports whether the runtime confirmed. An answer for which no forwarder waits any more costs no
// time.
func (r *returns) offerOnce(runtime core.RuntimeID, ask func() error) bool {
	r.mu.Lock()
	silent := time.Now().Before(r.silent[runtime])
	r.mu.Unlock()
	if silent {
		return false
	}

	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		return false
	}

	err := ask()
	if errors.Is(err, context.DeadlineExceeded) {
		r.silenceRuntime(runtime, time.Now())
	}

	return err == nil
}

// silenceRuntime ends the offers to a runtime for a while.
func (r *returns) silenceRuntime(runtime core.RuntimeID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.silent) >= maxSilent {
		clear(r.silent)
	}

	r.silent[runtime] = now.Add(silentFor)
}
