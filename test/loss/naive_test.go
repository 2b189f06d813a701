package loss

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const naiveTimeout = 2 * time.Second

// runNaive forwards events within admission, with short retries, and then drops them, as programs
// that are deployed today. It shows that the suite can fail. Its settings are in the environment. The webhook and
// the forwarder are the real ones: only the outbox between them is missing.
func runNaive(ctx context.Context) error {
	material, err := keys.NewFiles(keys.Paths{
		CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY"),
	}, keys.FilesOptions{})
	if err != nil {
		return err
	}
	forwarder, err := httpmtls.NewForwarder(material, os.Getenv("KCP_ADDR"), contract.V2,
		httpmtls.Options{Timeout: naiveTimeout, ServerName: "127.0.0.1"})
	if err != nil {
		return err
	}
	forward := core.AcceptorFunc(func(manager core.Manager, event core.WatchEvent) core.Outcome {
		if forwarder.Forward(ctx, manager, core.NewBatch(event)) != nil {
			return core.Dropped
		}
		return core.Accepted
	})
	handler, err := admission.New(forward, admission.Options{})
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT"), Handler: handler, ReadHeaderTimeout: naiveTimeout,
		TLSConfig: keys.WebhookTLSConfig(material, nil),
	}
	return errors.Join(server.ListenAndServeTLS("", ""), forwarder.Close())
}
