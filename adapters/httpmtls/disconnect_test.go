package httpmtls_test

import (
	"testing"
)

// The end of an idle connection is noticed without a request, except for those that the forwarder
// closes at its own end.
func TestDisconnected(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol string) {
		t.Helper()
		keys := newPKI(t)
		end, ended := newFarEnd(t, keys.server, accept), make(chan string, 10)
		opts := unhurried(protocol)
		opts.Hooks.Disconnected = func() { ended <- protocol }
		forwarder := newForwarder(t, keys.client, end.address(), opts)
		if err := forward(t, forwarder, event("object")); err != nil {
			t.Fatal(err)
		}
		end.CloseClientConnections()
		receive(t, ended)
		if err := forward(t, forwarder, event("object")); err != nil {
			t.Fatal(err)
		}
		_ = forwarder.Close() // It returns nil.
		end.awaitOpen(t, 0)
		if len(ended) > 0 {
			t.Error("the end of the forwarder is reported as that of a connection")
		}
	})
}
