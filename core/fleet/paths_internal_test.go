package fleet

import (
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The newest paths of a replica are kept, and it has exactly the documented time for a new one.
func TestThePathsOfAReplicaAreBounded(t *testing.T) {
	t.Parallel()

	const interval = 2 * defaultInterval
	var p paths
	all := make([]chan struct{}, maxPaths+2)
	for n := range all {
		all[n] = make(chan struct{})
		p.notePath(all[n], interval)
		p.notePath(all[n], interval) // The same path counts once.
		if want := min(n+1, maxPaths); len(p.open) != want {
			t.Errorf("%d paths are kept of %d, want %d", len(p.open), n+1, want)
		}
	}

	if p.open[0] != all[2] || p.open[maxPaths-1] != all[maxPaths+1] {
		t.Error("the first paths are kept, want the newest ones")
	}

	now := time.Unix(1e9, 0)
	for _, path := range all[2:] {
		p.dropEnded(now)
		if !p.lost.IsZero() {
			t.Error("the last path is lost while one is open")
		}
		close(path)
	}

	p.dropEnded(now)
	p.dropEnded(now.Add(time.Second)) // The first review noted the time.
	for after, over := range map[time.Duration]bool{0: false, reconnectWithin: false, reconnectWithin + 1: true} {
		if have := p.areOver(now.Add(after)); have != over {
			t.Errorf("%v after the last path: over is %t, want %t", after, have, over)
		}
	}
}

// A replica whose certificate ends in this moment has expired if it sent something up to a
// heartbeat before.
func TestTheExactEndOfACertificate(t *testing.T) {
	t.Parallel()

	end := time.Unix(1e9, 0)
	beat := &core.Heartbeat{Interval: defaultInterval}
	for _, tt := range []struct {
		after, heard time.Duration // since the end
		want         bool
	}{
		{0, 0, true}, {-1, -1, false}, {time.Hour, 0, true}, {0, -patience(beat), true}, {0, -patience(beat) - 1, false},
	} {
		p := &replica{heartbeat: beat, lastSeen: end.Add(tt.heard)}
		p.certificate.notAfter = end
		if have := p.isExpired(end.Add(tt.after)); have != tt.want {
			t.Errorf("%v after the end, heard %v after it: expired is %t, want %t", tt.after, tt.heard, have, tt.want)
		}
	}
}
