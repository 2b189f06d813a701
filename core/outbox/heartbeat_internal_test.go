package outbox

import (
	"testing"
	"time"
	"unsafe"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A wall clock that was set back by an hour after the last review must not make the review younger.
func TestAgeOfTheLastReviewIgnoresTheWallClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	review := now.Add(-10 * time.Minute)
	const hourInWall = 3600 << 30 // Seconds stand above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&review)) += hourInWall
	opts := Options{Heartbeat: func(core.Manager) core.Heartbeat { return core.Heartbeat{LastReview: review} }}
	beat := core.Heartbeat{Time: now}
	opts.fill("kyma", &beat)
	// On the wire, the times have no monotonic reading.
	if age := beat.Time.Round(0).Sub(beat.LastReview.Round(0)); age != 10*time.Minute {
		t.Errorf("the review is %v old, want 10 min", age)
	}
}
