package coremock

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Event matches a [core.WatchEvent], or a pointer to one, that equals want except for its time and
// its trace. A failed expectation prints the fields that differ.
func Event(want core.WatchEvent) gomock.Matcher { return event{foreseen(want)} }

type event struct{ want core.WatchEvent }

// Matches implements [gomock.Matcher].
func (e event) Matches(x any) bool {
	got, ok := eventOf(x)
	return ok && got == e.want
}

// String describes the expectation.
func (e event) String() string { return fmt.Sprintf("is the event %+v", e.want) }

// Got implements [gomock.GotFormatter].
func (e event) Got(x any) string {
	if got, ok := eventOf(x); ok {
		return fmt.Sprintf("%+v, which differs (-want +got):\n%s", got, cmp.Diff(e.want, got))
	}
	return fmt.Sprintf("%v (%T)", x, x)
}

func eventOf(x any) (core.WatchEvent, bool) {
	switch e := x.(type) {
	case core.WatchEvent:
		return foreseen(e), true
	case *core.WatchEvent:
		if e != nil {
			return foreseen(*e), true
		}
	}
	return core.WatchEvent{}, false
}

// foreseen returns the event without the fields that no test can foresee.
func foreseen(e core.WatchEvent) core.WatchEvent {
	e.Time, e.TraceParent = time.Time{}, ""
	return e
}
