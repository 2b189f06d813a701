package coremock

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Event matches a [core.WatchEvent] or *[core.WatchEvent] that equals want except for its time and
// its trace. A failed expectation prints the fields that differ.
func Event(want core.WatchEvent) gomock.Matcher {
	want = foreseen(want)
	matches := gomock.Cond(func(x any) bool {
		got := eventOf(x)
		return got != nil && foreseen(*got) == want
	})

	differs := gomock.GotFormatterFunc(func(x any) string {
		got := eventOf(x)
		if got == nil {
			return fmt.Sprintf("%v (%T)", x, x)
		}
		return fmt.Sprintf("%+v, which differs (-want +got):\n%s", *got, cmp.Diff(want, foreseen(*got)))
	})

	expected := gomock.StringerFunc(func() string { return fmt.Sprintf("is the event %+v", want) })
	return gomock.GotFormatterAdapter(differs, gomock.WantFormatter(expected, matches))
}

func eventOf(x any) *core.WatchEvent {
	if e, ok := x.(core.WatchEvent); ok {
		return &e
	}
	e, _ := x.(*core.WatchEvent)
	return e
}

// foreseen returns the event without the fields that no test can foresee.
func foreseen(e core.WatchEvent) core.WatchEvent {
	e.Time = time.Time{}
	e.TraceParent = ""
	return e
}
