package option_test

import (
	"errors"
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
func TestTimesNeedAUnit(t *testing.T) {
	t.Parallel()
	const want = "option has no unit: Options.Wait is 30ns, want at least 1ms, or 0 for the default"
	for _, err := range []error{option.NoneNegative(Options{Wait: 30}), option.NotNegative("Options.Wait", time.Duration(30))} {
		if err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if err := errors.Join(option.NotNegative("Retries", 30), option.NoneNegative(Options{Wait: time.Millisecond, Retries: 30})); err != nil {
		t.Error(err)
	}
}

func TestNoneNegativeNamesAll(t *testing.T) {
	t.Parallel()
	const want = "option is negative: Options.Wait is -1s, want more than 0, or 0 for the default\n" +
		"option is negative: Options.Rate is -0.5, want more than 0, or 0 for the default"
	if err := option.NoneNegative(Options{Wait: -time.Second, Retries: 2, Rate: -0.5}); err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}
