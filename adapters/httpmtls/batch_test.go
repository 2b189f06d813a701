package httpmtls_test

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// batchEnd is a far end of contract v3. It stores the sizes of the batches, and the runtimes that
// they claim.
type batchEnd struct {
	mu      sync.Mutex
	sizes   []int
	sources map[core.RuntimeID]bool
	ids     map[string]bool
}

func (b *batchEnd) note(t *testing.T, r *http.Request) {
	t.Helper()
	batch, err := contract.V3.Decode(must(io.ReadAll(r.Body)))
	if err != nil {
		t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sizes = append(b.sizes, len(batch.Events))
	b.sources[batch.Source] = true
	for i := range batch.Events {
		b.ids[batch.Events[i].ID] = true
	}
}

func newBatchForwarder(t *testing.T, opts httpmtls.Options) (*httpmtls.Forwarder, *batchEnd) {
	t.Helper()
	noted := &batchEnd{sources: make(map[core.RuntimeID]bool), ids: make(map[string]bool)}
	keys := newPKI(t)
	end := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) {
		noted.note(t, r)
		w.WriteHeader(http.StatusAccepted)
	})
	forwarder := must(httpmtls.NewForwarder(keys.client, end.address(), contract.V3, opts))
	t.Cleanup(func() { _ = forwarder.Close() })
	return forwarder, noted
}

func many(n int, name string) core.Batch {
	batch := core.Batch{Epoch: "epoch"}
	for i := range n {
		batch.Events = append(batch.Events, core.Numbered{
			WatchEvent: event(fmt.Sprint(name, i)),
			Sequence:   uint64(i + 1),
		})
	}
	return batch
}

func TestBatchesClaimTheIdentityOfTheCertificate(t *testing.T) {
	t.Parallel()
	for identity, want := range map[core.RuntimeID]core.RuntimeID{"": "skr-1", "spiffe://a/b": "spiffe://a/b"} {
		forwarder, noted := newBatchForwarder(t, httpmtls.Options{Identity: identity})
		batch := many(3, "object")
		if err := forwarder.Forward(t.Context(), manager, batch); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[core.RuntimeID]bool{want: true}, noted.sources); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int{3}, noted.sizes); diff != "" || len(noted.ids) != 3 {
			t.Errorf("%d different ids in batches (-want +got):\n%s", len(noted.ids), diff)
		}
		if batch.Source != "" || batch.Events[0].ID != "" {
			t.Error("the caller's batch was changed")
		}
	}
}
