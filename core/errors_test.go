package core_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// answer is an error that classifies itself, as those of a transport do.
type answer struct {
	retryable bool
	after     time.Duration
	cause     error
}

func (a *answer) Error() string             { return "answer" }
func (a *answer) Unwrap() error             { return a.cause }
func (a *answer) Retryable() bool           { return a.retryable }
func (a *answer) RetryAfter() time.Duration { return a.after }
func (a *answer) Reason() string            { return "answered" }

// Callers classify an error by the outermost error with an opinion. An error without an opinion is
// retried.
func TestClassification(t *testing.T) {
	t.Parallel()

	plain := errors.New("plain")
	tests := []struct {
		name      string
		err       error
		permanent bool
		after     time.Duration
		reason    string
	}{
		{"nil", nil, false, 0, "other"},
		{"one that classifies nothing", plain, false, 0, "other"},
		{"retryable", &answer{retryable: true, after: time.Second}, false, time.Second, "answered"},
		{"permanent", &answer{}, true, 0, "answered"},
		{"negative wait", &answer{after: -time.Second}, true, 0, "answered"},
		{"wrapped", fmt.Errorf("forward: %w", &answer{after: time.Minute}), true, time.Minute, "answered"},
		{"joined", errors.Join(plain, &answer{}), true, 0, "answered"},
		{"the outer one wins", &answer{retryable: true, cause: core.ErrInvalidManager}, false, 0, "answered"},
		{"invalid manager", core.ErrInvalidManager, true, 0, "invalid_manager"},
		{"invalid object", core.ErrInvalidObject, true, 0, "invalid_object"},
		{"invalid owner", core.ErrInvalidOwner, true, 0, "invalid_owner"},
		{"unknown manager", core.ErrUnknownManager, false, 0, "unknown_manager"},
		{"not sent", core.ErrNotSent, false, 0, "not_sent"},
		{"unauthenticated", core.ErrUnauthenticated, false, 0, "unauthenticated"},
		{"forbidden", fmt.Errorf("%w: %w", core.ErrForbidden, plain), false, 0, "forbidden"},
		{"not ready", core.ErrNotReady, false, 0, "not_ready"},
		{"deadline", fmt.Errorf("forward: %w", context.DeadlineExceeded), false, 0, "timeout"},
		{"cancelled", fmt.Errorf("forward: %w", context.Canceled), false, 0, "canceled"},
		{"events of which one is permanent", core.EventErrors{0: &answer{}}, false, 0, "other"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := core.IsPermanent(tt.err); got != tt.permanent {
				t.Errorf("IsPermanent = %v, want %v", got, tt.permanent)
			}
			if got := core.RetryAfter(tt.err); got != tt.after {
				t.Errorf("RetryAfter = %v, want %v", got, tt.after)
			}

			if got := core.ReasonOf(tt.err); string(got) != tt.reason {
				t.Errorf("Reason = %q, want %q", got, tt.reason)
			}
		})
	}
}

// The error of one event is not the error of the batch: errors.Is does not find it.
func TestEventErrors(t *testing.T) {
	t.Parallel()

	var err error = core.EventErrors{7: errors.New("seven"), 3: core.ErrForbidden}
	want := "2 events of the batch failed, the first is number 3: sender may not trigger this"
	if got := err.Error(); got != want {
		t.Errorf("error is %q, want %q", got, want)
	}

	if errors.Is(err, core.ErrForbidden) {
		t.Error("the error of one event is that of all")
	}
	if got := (core.EventErrors{}).Error(); got != "no event failed" {
		t.Errorf("error is %q", got)
	}
}
