package outbox

import (
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Sizes returns the size of all entries, as it is counted and as it is.
func (o *Outbox) Sizes() (counted, have int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lanes := 0
	for _, l := range o.byManager {
		lanes += l.bytes
		for e := range l.entries.all() {
			have += e.size()
		}
	}

	return max(o.totals.bytes, lanes), have
}

// A wall clock that was set back by an hour after the last review must not make the review younger.
func TestAgeOfTheLastReviewIgnoresTheWallClock(t *testing.T) {
	t.Parallel()

	now := time.Now()
	review := now.Add(-10 * time.Minute)
	const hourInWall = 3600 << 30 // Seconds stand above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&review)) += hourInWall
	opts := Options{Heartbeat: func(core.Manager) core.Heartbeat { return core.Heartbeat{LastReview: review} }}
	beat := core.Heartbeat{Time: now}
	newLane(&shared{opts: opts}, "kyma").fillHeartbeat(&beat)

	// On the wire, the times have no monotonic reading.
	if age := beat.Time.Round(0).Sub(beat.LastReview.Round(0)); age != 10*time.Minute {
		t.Errorf("the review is %v old, want 10 min", age)
	}
}

// A stranger can give 10,000 keys long names in an outage.
func TestEventsOfAKeyShareItsTexts(t *testing.T) {
	t.Parallel()

	l := newLane(&shared{opts: Options{}.withDefaults()}, "kyma")
	now := time.Now()
	var event core.WatchEvent
	for range 2 {
		event.Watched.Name = strings.Repeat("n", 100)
		l.putEvent(l.entries.find(event.Key()), event, now, now)
	}

	e := l.entries.find(event.Key())
	if unsafe.StringData(e.next.event.Watched.Name) != unsafe.StringData(e.Watched.Name) {
		t.Error("the newer event has a name of its own")
	}
}

// Owners are foreign input: the times of their resyncs need bounded memory, and the pace of each is
// kept.
func TestTimesOfResyncsAreBounded(t *testing.T) {
	t.Parallel()

	all := &shared{opts: Options{}.withDefaults()}
	l := newLane(all, "kyma")
	start := time.Now()
	for i := range 100 * maxOwners {
		l.resynced.noteSent(types.NamespacedName{Name: strconv.Itoa(i)}, start.Add(time.Duration(i)*time.Second))
		if n := len(l.resynced); n > maxOwners {
			t.Fatalf("%d owners after %d resyncs, want at most %d", n, i+1, maxOwners)
		}
	}

	last := types.NamespacedName{Name: strconv.Itoa(100*maxOwners - 1)}
	if _, kept := l.resynced[last]; !kept {
		t.Error("the time of the last resync is forgotten")
	}
}

// ErrStarted is what a second Start returns.
var ErrStarted = errStarted
