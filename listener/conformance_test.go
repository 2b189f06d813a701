package listener_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

// The listener behaves as every receiver does. The forwarder of package httpmtls is in another
// module; that of listenertest has its meaning of answers.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()
		l := must(listener.New(listenertest.Peers(), parts.Verifier, parts.Handlers, listener.Options{Fleet: parts.Fleet}))(t)
		return func(runtime core.RuntimeID) core.Forwarder { return listenertest.Forwarder(l, core.Peer{ID: runtime}) }
	}, coretest.ReceiverOptions{})
}
