package httpserver

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLogPace(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var pace logPace

		for i := range 3 {
			if _, ok := pace.allow("a"); ok != (i == 0) {
				t.Errorf("line %d is allowed: %v", i, ok)
			}
		}

		if _, ok := pace.allow("b"); !ok {
			t.Error("a line of another kind is suppressed")
		}

		time.Sleep(logEvery)

		if suppressed, ok := pace.allow("a"); !ok || suppressed != 2 {
			t.Errorf("after a while: allowed %v with %d suppressed, want 2", ok, suppressed)
		}
	})
}
