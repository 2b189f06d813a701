package controllerruntime

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// TestChecksAreBounded has room for two checks, and for one of each runtime.
func TestChecksAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		again := make(chan string, 10)
		book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited), matched: true}
		book.rechecks = newRechecks(func(runtime core.RuntimeID, request string) {
			again <- string(runtime) + ":" + request
		})
		book.rechecks.most = 2
		book.rechecks.mostOfRuntime = 1

		observe := func(runtime core.RuntimeID, request string) due {
			at, _ := book.observeEvent(runtime, request, &core.WatchEvent{UID: types.UID(request), Base: 5, Time: time.Now()})
			return at
		}

		for round := range 3 {
			for _, want := range []struct {
				runtime core.RuntimeID
				request string
				due     due
			}{
				{"a", "1", dueNow},
				{"a", "2", dueInQueue},
				{"a", "1", dueNow},
				{"b", "1", dueNow},
				{"c", "1", dueInQueue},
			} {
				if got := observe(want.runtime, want.request); got != want.due {
					t.Errorf("round %d, %s:%s is due %v, want %v", round, want.runtime, want.request, got, want.due)
				}
				time.Sleep(time.Millisecond) // In a bubble.
			}

			time.Sleep(recheckAfter)
			synctest.Wait()
			got := []string{<-again, <-again}
			slices.Sort(got)
			if !slices.Equal(got, []string{"a:1", "b:1"}) || len(again) > 0 {
				t.Errorf("round %d: %q again, and %d more, want those of a and b", round, got, len(again))
			}
			if book.rechecks.size != 0 || len(book.rechecks.runtimes) != 0 {
				t.Errorf("round %d: %d checks are left", round, book.rechecks.size)
			}
		}
	})
}

// TestACheckWithoutItsPlace loses the place of an object, as in a full book.
func TestACheckWithoutItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var again atomic.Int64
		book := reads[string]{runtimes: make(map[core.RuntimeID]map[place[string]]*awaited), matched: true}
		book.rechecks = newRechecks(func(core.RuntimeID, string) { again.Add(1) })
		for i := range 2 {
			book.observeEvent("a", "r", &core.WatchEvent{UID: types.UID(rune('u' + i)), Base: 5})
		}

		book.mu.Lock()
		book.evictPlace(0)
		book.mu.Unlock()
		time.Sleep(recheckAfter)
		synctest.Wait()
		if got := again.Load(); got != 2 {
			t.Errorf("%d requests, want one for each object, read or lost", got)
		}
	})
}
