package fleet

import (
	"slices"
	"time"
)

const (
	// maxPaths bounds the open paths of a replica.
	maxPaths = 4
	// reconnectWithin is longer than an agent takes to send a heartbeat after its connection has
	// ended, at most 30 s.
	reconnectWithin = 35 * time.Second
)

// paths are those on which a replica has sent, if their ends are noticed. They count for heartbeats
// at intervals above 30 s, which alone would show the end of a replica too late.
type paths struct {
	// open has [core.Peer].Lost of each.
	open []<-chan struct{}
	// lost is the time at which the last path was found to have ended, and zero while a path is
	// open.
	lost time.Time
}

// notePath takes in the path of a request. The path is nil if its end is not noticed.
func (p *paths) notePath(path <-chan struct{}, interval time.Duration) {
	p.lost = time.Time{}
	if interval <= defaultInterval {
		p.open = nil
		return
	}
	p.open = slices.DeleteFunc(p.open, hasEnded)
	if slices.Contains(p.open, path) {
		return
	}

	p.open = append(p.open, path)
	p.open = slices.Delete(p.open, 0, max(len(p.open)-maxPaths, 0))
}

func (p *paths) dropEnded(now time.Time) {
	hadPath := len(p.open) > 0
	p.open = slices.DeleteFunc(p.open, hasEnded)
	if hadPath && len(p.open) == 0 {
		p.lost = now
	}
}

// areOver reports whether the replica had the time to use a new path, and did not.
func (p *paths) areOver(now time.Time) bool {
	return !p.lost.IsZero() && now.Sub(p.lost) > reconnectWithin
}

func hasEnded(path <-chan struct{}) bool {
	select {
	case <-path:
		return true
	default:
		return false
	}
}
