package option_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

type hooks struct{ Called, Retried string }

type Options struct {
	Name    string
	Wait    time.Duration
	Retries int
	Rate    float64
	Delays  []time.Duration
	Hooks   hooks
}

func TestWithDefaultsKeepsWhatIsSet(t *testing.T) {
	t.Parallel()
	all := Options{"name", time.Second, 2, 3, []time.Duration{4}, hooks{"called", "retried"}}
	if diff := cmp.Diff(all, option.WithDefaults(Options{}, all)); diff != "" {
		t.Errorf("nothing is set (-want +got):\n%s", diff)
	}
	some := Options{Wait: -1, Delays: []time.Duration{}, Hooks: hooks{Retried: "own"}}
	want := Options{"name", -1, 2, 3, []time.Duration{}, hooks{"called", "own"}}
	if diff := cmp.Diff(want, option.WithDefaults(some, all)); diff != "" {
		t.Errorf("some are set (-want +got):\n%s", diff)
	}
}

func TestNoneNegativeNamesAll(t *testing.T) {
	t.Parallel()
	if err := option.NoneNegative(Options{Wait: 1}); err != nil {
		t.Error(err)
	}
	const want = "option is negative: Options.Wait is -1s, want more than 0, or 0 for the default\n" +
		"option is negative: Options.Retries is -2, want more than 0, or 0 for the default\n" +
		"option is negative: Options.Rate is -0.5, want more than 0, or 0 for the default"
	err := option.NoneNegative(Options{Wait: -time.Second, Retries: -2, Rate: -0.5})
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}
