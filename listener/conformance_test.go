package listener_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// The listener behaves as every receiver does. The forwarder of package httpmtls is in another
// module; this one has its meaning of answers.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()
		peers := listener.PeersFunc(func(r *http.Request) (core.Peer, error) {
			return core.Peer{ID: core.RuntimeID(r.Header.Get("Runtime"))}, nil
		})
		l, err := listener.New(peers, parts.Verifier, parts.Handlers, listener.Options{Fleet: parts.Fleet})
		if err != nil {
			t.Fatal(err)
		}
		return func(runtime core.RuntimeID) core.Forwarder { return &directly{l, runtime} }
	}, coretest.ReceiverOptions{})
}

// directly is a forwarder that calls the handler of a listener.
type directly struct {
	to      http.Handler
	runtime core.RuntimeID
}

func (d *directly) Forward(ctx context.Context, manager core.Manager, batch core.Batch) error {
	if batch.Source == "" {
		batch.Source = d.runtime
	}
	encoded, err := contract.V3.Encode(&batch)
	if err != nil || len(encoded.Failed) > 0 {
		return fmt.Errorf("encode: %w: %w", err, encoded.Failed)
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, contract.V3.Path(manager), bytes.NewReader(encoded.Body))
	r.Header.Set("Content-Type", contract.V3.ContentType())
	r.Header.Set("Runtime", string(d.runtime))
	w := serve(d.to, r)
	if w.Code == contract.V3.Status() {
		return nil
	}
	answer := contract.DecodeAnswer(w.Code, w.Body.Bytes(), len(batch.Events)+1)
	answer.RetryAfter, _ = time.ParseDuration(w.Header().Get("Retry-After") + "s")
	if len(answer.Failed) == 0 {
		return refusedWith(answer.Refusal)
	}
	failed := core.EventErrors{}
	for i, refusal := range answer.Failed {
		failed[i] = refusedWith(refusal)
	}
	return failed
}

func refusedWith(r contract.Refusal) error {
	meaning := contract.V3.Interpret(r, false)
	return coretest.Refusal{
		Label: meaning.Reason, After: r.RetryAfter, Cause: meaning.Cause, Permanent: meaning.Permanent,
	}.Err()
}
