package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// TestEndedContextIsNoLostConnection: the label of a metric tells a slow stream from a broken connection.
func TestEndedContextIsNoLostConnection(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		err := classify("subject", fmt.Errorf("publish: %w", cause))
		if want := core.Reason(cause); err.reason != want || want == reasonConnection {
			t.Errorf("%v has the reason %q, want %q", cause, err.reason, want)
		}
		if !errors.Is(err, cause) || !err.Retryable() {
			t.Errorf("%v must keep its cause and be retryable", err)
		}
	}
}
