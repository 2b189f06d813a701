package httpmtls_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
)

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
