package httpmtls_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// batchEnd is a far end of contract v3. It stores the sizes of the batches, and the runtimes that
// they claim.
type batchEnd struct {
	mu      sync.Mutex
	sizes   []int
	sources map[core.RuntimeID]bool
	ids     map[string]bool
	// sequence has the numbers in the order of their arrival. heartbeats has whether a batch had one.
	sequence   []uint64
	heartbeats []bool
}

func (b *batchEnd) note(t *testing.T, r *http.Request) core.Batch {
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
		b.sequence = append(b.sequence, batch.Events[i].Sequence)
	}
	b.heartbeats = append(b.heartbeats, batch.Heartbeat != nil)
	return batch
}

func newBatchForwarder(
	t *testing.T, opts httpmtls.Options, answer func(w http.ResponseWriter, batch core.Batch),
) (*httpmtls.Forwarder, *batchEnd) {
	t.Helper()
	noted := &batchEnd{sources: make(map[core.RuntimeID]bool), ids: make(map[string]bool)}
	keys := newPKI(t)
	end := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) { answer(w, noted.note(t, r)) })
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
		forwarder, noted := newBatchForwarder(t, httpmtls.Options{Identity: identity},
			func(w http.ResponseWriter, _ core.Batch) {
				w.WriteHeader(http.StatusAccepted)
			})
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

// Events that do not fit into a request keep their order and their numbers, and are sent with the
// next one. A heartbeat has the last number, so it must not overtake them.
func TestBatchThatIsTooLargeIsCut(t *testing.T) {
	t.Parallel()
	forwarder, noted := newBatchForwarder(t, httpmtls.Options{}, func(w http.ResponseWriter, _ core.Batch) {
		w.WriteHeader(http.StatusAccepted)
	})
	rest := many(500, strings.Repeat("x", 240))
	rest.Heartbeat = &core.Heartbeat{ID: "heartbeat", Number: 1, Sequence: 500}
	for len(rest.Events) > 0 {
		err := forwarder.Forward(t.Context(), manager, rest)
		unsent, _ := errors.AsType[core.EventErrors](err)
		first := len(rest.Events)
		for i, err := range unsent {
			if !errors.Is(err, core.ErrNotSent) || core.IsPermanent(err) {
				t.Fatalf("event %d: %v, want that it was not sent", i, err)
			}
			first = min(first, i)
		}
		rest.Events = rest.Events[first:]
	}
	want := make([]uint64, 500)
	for i := range want {
		want[i] = uint64(i + 1)
	}
	if diff := cmp.Diff(want, noted.sequence); diff != "" {
		t.Errorf("numbers that arrived (-want +got):\n%s", diff)
	}
	for i, beat := range noted.heartbeats {
		if last := i == len(noted.heartbeats)-1; beat != last {
			t.Errorf("batch %d of %d has a heartbeat: %v, want it behind the last event", i+1, len(noted.heartbeats),
				beat)
		}
	}
	if len(noted.sizes) < 2 {
		t.Errorf("batches of %v, want more than one: the events do not fit into one request", noted.sizes)
	}
}

// partial is an answer that names refused elements.
func partial(failed map[int]contract.Refusal) ([]byte, error) {
	answer := contract.Partial(failed)
	return answer.Body()
}

func TestAnswerNamesRefusedEvents(t *testing.T) {
	t.Parallel()
	forwarder, _ := newBatchForwarder(t, httpmtls.Options{}, func(w http.ResponseWriter, _ core.Batch) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write(must(partial(map[int]contract.Refusal{
			1: {Status: http.StatusServiceUnavailable, Reason: "queue_full", RetryAfter: 3 * time.Second},
			2: {Status: http.StatusForbidden, Reason: "san_mismatch"},
			3: {Status: http.StatusBadRequest, Reason: "malformed"},
		})))
	})
	partial, ok := errors.AsType[core.EventErrors](forwarder.Forward(t.Context(), manager, many(5, "object")))
	if !ok || len(partial) != 3 {
		t.Fatalf("failures %v, want 3 of 5", partial)
	}
	for index, want := range map[int]struct {
		reason    string
		after     time.Duration
		permanent bool
	}{
		1: {reasons.NotReady, 3 * time.Second, false},
		2: {reasons.Forbidden, 30 * time.Second, false},
		3: {reasons.Malformed, 0, true},
	} {
		err := partial[index]
		if core.Reason(err) != want.reason || core.RetryAfter(err) != want.after ||
			core.IsPermanent(err) != want.permanent {
			t.Errorf("event %d: %v (reason %s, after %v), want %+v", index, err, core.Reason(err), core.RetryAfter(err),
				want)
		}
	}
}

func TestAnswerWithUnknownIndexCountsForAll(t *testing.T) {
	t.Parallel()
	forwarder, _ := newBatchForwarder(t, httpmtls.Options{Retries: -1}, func(w http.ResponseWriter, _ core.Batch) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write(must(partial(map[int]contract.Refusal{7: {Status: http.StatusBadRequest}})))
	})
	err := forwarder.Forward(t.Context(), manager, many(5, "object"))
	if _, ok := errors.AsType[core.EventErrors](err); ok || core.IsPermanent(err) || core.Reason(err) != "client_error" {
		t.Errorf("error %v, want one for the whole batch", err)
	}
}
