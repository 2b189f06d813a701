package coremock_test

import (
	"errors"
	"testing"

	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
)

// Every port has a mock with its current signature.
var (
	_ core.Acceptor  = (*coremock.MockAcceptor)(nil)
	_ core.Forwarder = (*coremock.MockForwarder)(nil)
	_ core.Verifier  = (*coremock.MockVerifier)(nil)
	_ core.Handler   = (*coremock.MockHandler)(nil)
)

func TestMocksReturnTheExpectedResults(t *testing.T) {
	t.Parallel()
	control := gomock.NewController(t)
	acceptor, forwarder := coremock.NewMockAcceptor(control), coremock.NewMockForwarder(control)
	verifier, handler := coremock.NewMockVerifier(control), coremock.NewMockHandler(control)
	event := core.WatchEvent{Resync: true}
	batch := core.NewBatch(event)
	acceptor.EXPECT().Accept(core.Manager("a"), event).Return(core.Coalesced)
	forwarder.EXPECT().Forward(gomock.Any(), core.Manager("a"), batch).Return(core.ErrNotReady)
	verifier.EXPECT().Verify(gomock.Any(), core.Peer{ID: "r"}, &event).Return(core.ErrForbidden)
	handler.EXPECT().Handle(gomock.Any(), core.Delivery{Event: event}).Return(nil)
	if outcome := acceptor.Accept("a", event); outcome != core.Coalesced {
		t.Errorf("Accept = %v", outcome)
	}
	if err := forwarder.Forward(t.Context(), "a", batch); !errors.Is(err, core.ErrNotReady) {
		t.Errorf("Forward = %v", err)
	}
	if err := verifier.Verify(t.Context(), core.Peer{ID: "r"}, &event); !errors.Is(err, core.ErrForbidden) {
		t.Errorf("Verify = %v", err)
	}
	if err := handler.Handle(t.Context(), core.Delivery{Event: event}); err != nil {
		t.Errorf("Handle = %v", err)
	}
}
