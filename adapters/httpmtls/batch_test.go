package httpmtls_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func TestBatchesClaimTheIdentityOfTheCertificate(t *testing.T) {
	t.Parallel()
	keys := newPKI(t)
	for identity, want := range map[core.RuntimeID]core.RuntimeID{"": "skr-1", "spiffe://a/b": "spiffe://a/b"} {
		arrived := make(chan core.Batch, 1)
		end := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) {
			arrived <- must(contract.V3.Decode(must(io.ReadAll(r.Body))))
			w.WriteHeader(http.StatusAccepted)
		})
		forwarder := must(httpmtls.NewForwarder(keys.client, end.address(), contract.V3, httpmtls.Options{Identity: identity}))
		t.Cleanup(func() { _ = forwarder.Close() })
		sent := core.NewBatch(event("a"), event("b"), event("c"))
		if err := forwarder.Forward(t.Context(), manager, sent); err != nil {
			t.Fatal(err)
		}
		got, ids := receive(t, arrived), map[string]bool{}
		for i := range got.Events {
			ids[got.Events[i].ID] = true
		}
		if got.Source != want || len(got.Events) != 3 || len(ids) != 3 {
			t.Errorf("batch of %q with %d events and %d IDs, want one of %q with 3", got.Source, len(got.Events), len(ids), want)
		}
		if sent.Source != "" || sent.Events[0].ID != "" {
			t.Error("the caller's batch was changed")
		}
	}
}
