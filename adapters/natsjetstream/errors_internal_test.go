package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// TestClassify: the label of a metric tells a slow stream from a broken connection, and the class
// decides how long the outbox waits. No failure of a publish is final.
func TestClassify(t *testing.T) {
	stream := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
	for _, test := range []struct {
		cause, class error
		reason       string
	}{
		{cause: context.DeadlineExceeded, reason: core.Reason(context.DeadlineExceeded)},
		{cause: context.Canceled, reason: core.Reason(context.Canceled)},
		{cause: nats.ErrPermissionViolation, class: core.ErrForbidden, reason: reasons.Forbidden},
		{cause: jetstream.ErrNoStreamResponse, class: core.ErrUnknownManager, reason: reasons.UnknownManager},
		{cause: nats.ErrNoResponders, class: core.ErrUnknownManager, reason: reasons.UnknownManager},
		{cause: nats.ErrMaxPayload, reason: reasons.TooLarge},
		{cause: jetstream.ErrStreamMessageExceedsMaximum, reason: reasons.TooLarge},
		{cause: nats.ErrConnectionClosed, reason: reasonDisconnected},
		{cause: nats.ErrReconnectBufExceeded, reason: reasonDisconnected},
		{cause: nats.ErrDisconnected, reason: reasonDisconnected},
		{cause: nats.ErrConnectionReconnecting, reason: reasonDisconnected},
		{cause: stream(codeInsufficientResources), class: core.ErrNotReady, reason: reasonStreamFull},
		{cause: stream(codeMemoryExceeded), class: core.ErrNotReady, reason: reasonStreamFull},
		{cause: stream(codeStorageExceeded), class: core.ErrNotReady, reason: reasonStreamFull},
		{cause: stream(codeStoreFailed), class: core.ErrNotReady, reason: reasonStreamFull},
		{cause: stream(10071), class: core.ErrNotReady, reason: reasonStream},
		{cause: errors.New("broken"), reason: reasonConnection},
	} {
		err := classify("subject", fmt.Errorf("publish: %w", test.cause))
		if err.reason != test.reason || !err.Retryable() || !errors.Is(err, test.cause) {
			t.Errorf("%v, retryable %t, want the reason %q and %v", err, err.Retryable(), test.reason, test.cause)
		}
		for _, class := range []error{
			core.ErrForbidden, core.ErrUnknownManager, core.ErrNotReady, core.ErrUnauthenticated,
		} {
			if is := errors.Is(err, class); is != (class == test.class) { //nolint:errorlint // The very class.
				t.Errorf("%v is %v: %t", test.cause, class, is)
			}
		}
	}
	for status, want := range map[int]string{400: "<nil>", 500: "status 500", 503: core.ErrNotReady.Error()} {
		if got := fmt.Sprint(refused("subject", contract.Refusal{Status: status}, 0).Err); got != want {
			t.Errorf("cause of an answer of %d: %s, want %s", status, got, want)
		}
	}
}
