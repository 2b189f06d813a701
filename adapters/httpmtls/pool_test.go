package httpmtls_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
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

// A metric of connections has the same results as the error of the request that needed one.
func TestConnectedHasTheReasonOfTheRequest(t *testing.T) {
	t.Parallel()
	keys := newPKI(t)
	for address, want := range map[string]string{
		"127.0.0.1:1": "dial",
		newFarEnd(t, keys.server, accept).address(): "",
	} {
		reasons := make(chan string, 10)
		connected := func(err error) {
			if err == nil {
				reasons <- ""
				return
			}
			reasons <- core.Reason(err)
		}
		forwarder := newForwarder(t, keys.client, address, httpmtls.Options{
			Retries: -1, Hooks: httpmtls.Hooks{Connected: connected},
		})
		_ = forward(t, forwarder, event("object"))
		if got := receive(t, reasons); got != want {
			t.Errorf("connection to %s: reason %q, want %q", address, got, want)
		}
	}
}
