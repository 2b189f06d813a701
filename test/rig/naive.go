package rig

import (
	"context"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// StartNaive serves the webhook of an agent that sends from inside admission, once and by contract v2, and returns its port. The webhook is
// the real one, and so is what sends: only the outbox between them is missing. Reviewed hears how long each answer took; nil is fine.
func StartNaive(
	t testing.TB, volume *testpki.Volume, controlPlane string, reviewed func(manager core.Manager, decision string, took time.Duration),
) (port int) {
	t.Helper()

	ca, cert, key := volume.Paths()

	material, err := httpmtls.NewFiles(httpmtls.Paths{CA: ca, Certificate: cert, Key: key}, httpmtls.FilesOptions{})
	if err != nil {
		t.Fatal(err)
	}

	forwarder, err := httpmtls.NewForwarder(material, controlPlane, contract.V2, httpmtls.Options{})
	if err != nil {
		t.Fatal(err)
	}

	handler, err := admission.New(core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if err := forwarder.Forward(context.Background(), manager, core.NewBatch(event)); err != nil {
			return core.Dropped
		}

		return core.Accepted
	}), admission.Options{Hooks: admission.Hooks{Reviewed: reviewed}})
	if err != nil {
		t.Fatal(err)
	}

	server := httptest.NewUnstartedServer(handler)
	server.TLS = httpmtls.WebhookTLSConfig(material, nil)
	server.StartTLS()
	t.Cleanup(func() {
		_ = forwarder.Close() // It never fails.

		server.CloseClientConnections()
		server.Close()
	})

	address, _ := server.Listener.Addr().(*net.TCPAddr)

	return address.Port
}
