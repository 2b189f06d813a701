package option_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

type Options struct {
	Wait    time.Duration
	Retries int
	Rate    float64
	Delays  []int
	Hooks   struct{ Called, Retried string }
}

func TestWithDefaultsKeepsWhatIsSet(t *testing.T) {
	t.Parallel()

	all := Options{time.Second, 2, 3, []int{4}, struct{ Called, Retried string }{"called", "retried"}}
	some := Options{Wait: -1, Delays: []int{}}
	some.Hooks.Retried = "own"
	want := Options{-1, 2, 3, []int{}, struct{ Called, Retried string }{"called", "own"}}
	if diff := cmp.Diff(want, option.WithDefaults(some, all)); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

// A number without a unit is in nanoseconds, and would make an interval a flood.
func TestNoneNegativeNamesAll(t *testing.T) {
	t.Parallel()
	for want, options := range map[string]Options{
		"option is negative: Options.Wait is -1s, want more than 0, or 0 for the default\n" +
			"option is negative: Options.Rate is -0.5, want more than 0, or 0 for the default": {Wait: -time.Second, Retries: 2, Rate: -0.5},
		"option has no unit: Options.Wait is 30ns, want at least 1ms, or 0 for the default": {Wait: 30, Retries: 30},
		"<nil>": {Wait: time.Millisecond},
	} {
		if have := fmt.Sprint(option.NoneNegative(options)); have != want {
			t.Errorf("the error is %s, want %s", have, want)
		}
	}
}
