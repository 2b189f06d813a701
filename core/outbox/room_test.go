package outbox_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// long returns an event whose texts have about 1 kB.
func long(prefix string, number int) core.WatchEvent {
	return named(numbered(prefix, number) + strings.Repeat("n", 1000))
}

// TestBytesAreBounded fills an outbox with objects of long names. A resync replaces the rest.
func TestBytesAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		event       func(string, int) core.WatchEvent
		least, most int
	}{
		"control: usual names": {func(prefix string, n int) core.WatchEvent { return named(numbered(prefix, n)) }, 1000, 1000},
		"long names":           {long, 635, 665},
	} {
		inBubble(t, scene{
			opts:   outbox.Options{MaxBytes: 1 << 20, DrainTimeout: -1, Resend: []time.Duration{}, ResendResync: -1},
			answer: until(time.Minute, errDown),
		}, func(w *world) {
			kept := 0
			for i := range 1000 {
				if w.Accept(kyma, tt.event("o-", i)) == core.Accepted {
					kept++
				}
			}

			w.wantBetween(tt.least, kept, tt.most, name+" are kept")
			counted, _ := w.Sizes()
			w.wantBetween(1, counted, 1<<20+2000, "bytes, with a resync")

			time.Sleep(2 * time.Minute)
			counted, _ = w.Sizes()
			w.wantBetween(0, counted, 0, "bytes after all was delivered")
			if c := w.Counts()[kyma]; c.Pending > 0 || kept < 1000 && c.Dropped["overflow"] != int64(1000-kept) {
				t.Errorf("%s: counts %+v, want an overflow for each of %d", name, c, 1000-kept)
			}
		})
	}
}

// The newer event of a key takes room, too.
func TestNewerEventsTakeBytes(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxBytes: 10_000, DrainTimeout: -1}, answer: always(errDown)}, func(w *world) {
		for range 3 {
			for i := range 20 {
				event := named(numbered("o-", i))
				event.TraceParent = strings.Repeat("t", 55)
				w.Accept(kyma, event)
			}
			time.Sleep(time.Minute)
		}

		counted, _ := w.Sizes()
		w.wantBetween(8000, counted, 12_000, "bytes")
	})
}

// An invented manager with long names takes the bytes of a real one only while it has fewer.
func TestInventedManagerDoesNotTakeAllBytes(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxBytes: 1 << 20, DrainTimeout: -1}, via: serving(kyma)}, func(w *world) {
		for i := range 1000 {
			w.Accept("invented", long("o-", i))
		}

		for i := range 300 {
			w.wantOutcome(kyma, named(numbered("o-", i)), core.Accepted)
		}

		w.Accept("invented", long("o-", 2000)) // It does not get them back.
		time.Sleep(time.Minute)
		w.wantDelivered(300)
	})
}

// An event that is larger than all room displaces nothing.
func TestEventBeyondAllRoom(t *testing.T) {
	inBubble(t, scene{opts: outbox.Options{MaxBytes: 1500, DrainTimeout: -1}, answer: always(errDown)}, func(w *world) {
		w.wantOutcome(kyma, named("small"), core.Accepted)
		w.wantOutcome("other", long("large-", 1), core.Dropped)
		if c := w.Counts()[kyma]; c.Dropped["overflow"] != 0 {
			t.Errorf("counts %+v, want the small event kept", c)
		}
	})
}

// The default has room for as many objects with usual names as MaxKeys allows.
func TestDefaultHasRoomForUsualNames(t *testing.T) {
	box := newOutbox(t, core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil }), outbox.Options{})
	for n := range outbox.Defaults().MaxKeys {
		event := named(fmt.Sprintf("shop-frontend-7c9d8b6f5d-%05d", n))
		event.Watched.Namespace = "kyma-system"
		event.UID = types.UID(fmt.Sprintf("0af76519-16cd-43dd-8448-%012d", n))
		if got := box.Accept(kyma, event); got != core.Accepted {
			t.Fatalf("event %d is %s, want all accepted", n, got)
		}
	}
}

// TestSizesAreAboutTheMemory compares the sizes that count for MaxBytes with the heap.
func TestSizesAreAboutTheMemory(t *testing.T) {
	const events = 4000
	for name, event := range map[string]func(int) core.WatchEvent{
		"short names": func(n int) core.WatchEvent { return named(numbered("o-", n)) },
		"long names":  func(n int) core.WatchEvent { return long("o-", n) },
	} {
		for _, beside := range []int{0, 1} { // newer events for each
			box := newOutbox(t, core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil }),
				outbox.Options{MaxBytes: 64 << 20})
			before := heap()

			for range 1 + beside {
				for n := range events {
					newest := event(n)
					newest.TraceParent = strings.Repeat("t", 55) + strconv.Itoa(n)
					if got := box.Accept(kyma, newest); got != core.Accepted {
						t.Fatalf("%s: event %d is %s, want all accepted", name, n, got)
					}
				}
			}

			counted, _ := box.Sizes()
			ratio := float64(heap()-before) / float64(counted)
			t.Logf("%s, with %d beside each: %d bytes for an event, %.2f of the count", name, beside, counted/events, ratio)
			if ratio < 0.5 || ratio > 1.25 {
				t.Errorf("%s, with %d beside each: the memory is %.2f of what counts, want about 1", name, beside, ratio)
			}
			runtime.KeepAlive(box)
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // The first one may only end the cycle that was under way.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
