package outbox

import (
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Owners are foreign input: the times of their resyncs need bounded memory, and the pace of each is kept.
func TestTimesOfResyncsAreBounded(t *testing.T) {
	t.Parallel()
	all := &shared{opts: Options{}.withDefaults()}
	l := newLane(all, "kyma", "")
	start := time.Now()
	for i := range 100 * maxOwners {
		l.noteResynced(types.NamespacedName{Name: strconv.Itoa(i)}, start.Add(time.Duration(i)*time.Second))
		if n := len(l.resynced); n > maxOwners {
			t.Fatalf("%d owners after %d resyncs, want at most %d", n, i+1, maxOwners)
		}
	}
	last := types.NamespacedName{Name: strconv.Itoa(100*maxOwners - 1)}
	if _, kept := l.resynced[last]; !kept {
		t.Error("the time of the last resync is forgotten")
	}
}
