package main

import (
	"errors"
	"testing"

	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A mock of a port.
func TestVerifiersJoin(t *testing.T) {
	stolen := errors.New("stolen")
	verifier := coremock.NewMockVerifier(gomock.NewController(t))
	verifier.EXPECT().Verify(gomock.Any(), core.Peer{ID: "runtime-1"}, gomock.Any()).Return(stolen)

	all := listener.AllOf(listener.InsecureAllowAll(), verifier)
	if err := all.Verify(t.Context(), core.Peer{ID: "runtime-1"}, &core.WatchEvent{}); !errors.Is(err, stolen) {
		t.Errorf("error %v, want %v", err, stolen)
	}
}
