package certmanager_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

func TestStartFails(t *testing.T) {
	if _, err := certmanager.Start(t.Context(), "/does/not/exist", certmanager.Options{}); err == nil {
		t.Error("no error without a kubeconfig")
	}
}
