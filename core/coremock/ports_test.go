package coremock_test

import (
	"errors"
	"testing"

	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
)

// Every port has its mock, and it is of today's port.
func TestMocksAnswerAsTold(t *testing.T) {
	t.Parallel()

	control := gomock.NewController(t)
	forwarder, verifier := coremock.NewMockForwarder(control), coremock.NewMockVerifier(control)
	handler := coremock.NewMockHandler(control)

	event := core.WatchEvent{Kind: core.KindResync}
	forwarder.EXPECT().Forward(gomock.Any(), core.Manager("a"), []core.WatchEvent{event}).Return(core.ErrNotReady)
	verifier.EXPECT().Verify(gomock.Any(), core.Peer{ID: "r"}, &event).Return(core.ErrForbidden)
	handler.EXPECT().Handle(gomock.Any(), core.Delivery{Event: event}).Return(nil)

	if err := core.Forwarder(forwarder).Forward(t.Context(), "a", []core.WatchEvent{event}); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("Forward = %v", err)
	}

	if err := core.Verifier(verifier).Verify(t.Context(), core.Peer{ID: "r"}, &event); !errors.Is(err, core.ErrForbidden) {
		t.Errorf("Verify = %v", err)
	}

	if err := core.Handler(handler).Handle(t.Context(), core.Delivery{Event: event}); err != nil {
		t.Errorf("Handle = %v", err)
	}
}
