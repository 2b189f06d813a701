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
)

// batchEnd is a far end of contract v3 that notes the sizes of the batches, and who they claim to come from.
type batchEnd struct {
	mu      sync.Mutex
	sizes   []int
	sources map[core.RuntimeID]bool
	ids     map[string]bool
}

func (b *batchEnd) note(t *testing.T, r *http.Request) []core.WatchEvent {
	t.Helper()

	events, err := contract.V3.Decode(must(io.ReadAll(r.Body)))
	if err != nil {
		t.Error(err)
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	b.sizes = append(b.sizes, len(events))

	for i := range events {
		b.sources[events[i].Source] = true
		b.ids[events[i].ID] = true
	}

	return events
}

func newBatchForwarder(t *testing.T, opts httpmtls.Options, answer func(w http.ResponseWriter, events []core.WatchEvent)) (*httpmtls.Forwarder, *batchEnd) {
	t.Helper()

	noted := &batchEnd{sources: make(map[core.RuntimeID]bool), ids: make(map[string]bool)}
	keys := newPKI(t)
	end := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) { answer(w, noted.note(t, r)) })
	forwarder := must(httpmtls.NewForwarder(keys.client, end.address(), contract.V3, opts))

	t.Cleanup(func() { _ = forwarder.Close() })

	return forwarder, noted
}

func many(n int, name string) []core.WatchEvent {
	events := make([]core.WatchEvent, n)
	for i := range events {
		events[i] = event(fmt.Sprint(name, i))
	}

	return events
}

func TestBatchesClaimTheIdentityOfTheCertificate(t *testing.T) {
	t.Parallel()

	for identity, want := range map[core.RuntimeID]core.RuntimeID{"": "skr-1", "spiffe://a/b": "spiffe://a/b"} {
		forwarder, noted := newBatchForwarder(t, httpmtls.Options{Identity: identity}, func(w http.ResponseWriter, _ []core.WatchEvent) {
			w.WriteHeader(http.StatusAccepted)
		})

		events := many(501, "object")
		if err := forwarder.Forward(t.Context(), manager, events); err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(map[core.RuntimeID]bool{want: true}, noted.sources); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}

		if diff := cmp.Diff([]int{500, 1}, noted.sizes); diff != "" || len(noted.ids) != 501 {
			t.Errorf("%d different ids in batches (-want +got):\n%s", len(noted.ids), diff)
		}

		if events[0].Source != "" || events[0].ID != "" {
			t.Error("the caller's events were changed")
		}
	}
}

func TestBatchThatIsTooLargeIsHalved(t *testing.T) {
	t.Parallel()

	forwarder, noted := newBatchForwarder(t, httpmtls.Options{}, func(w http.ResponseWriter, events []core.WatchEvent) {
		if strings.HasSuffix(events[0].Watched.Name, "x250") { // The first of the second half.
			w.WriteHeader(http.StatusServiceUnavailable)
			w.Header().Set("Retry-After", "1")

			return
		}

		w.WriteHeader(http.StatusAccepted)
	})

	err := forwarder.Forward(t.Context(), manager, many(500, strings.Repeat("x", 240)))

	partial, ok := errors.AsType[core.EventErrors](err)
	if !ok || len(partial) != 250 || partial[249] != nil || core.Reason(partial[250]) != httpmtls.ReasonNotReady {
		t.Errorf("error %v, want the second half refused", err)
	}

	if noted.sizes[0] != 250 {
		t.Errorf("batches of %v, want halves", noted.sizes)
	}
}

func TestAnswerNamesTheEventsThatWereNotTaken(t *testing.T) {
	t.Parallel()

	forwarder, _ := newBatchForwarder(t, httpmtls.Options{}, func(w http.ResponseWriter, _ []core.WatchEvent) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(must(contract.EncodeFailures("partial", map[int]contract.Failure{
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
		1: {httpmtls.ReasonNotReady, 3 * time.Second, false},
		2: {httpmtls.ReasonForbidden, httpmtls.DefaultRefusedRetryAfter, false},
		3: {httpmtls.ReasonMalformed, 0, true},
	} {
		err := partial[index]
		if core.Reason(err) != want.reason || core.RetryAfter(err) != want.after || core.IsPermanent(err) != want.permanent {
			t.Errorf("event %d: %v (reason %s, after %v), want %+v", index, err, core.Reason(err), core.RetryAfter(err), want)
		}
	}
}

func TestAnswerThatNamesWhatWasNotSentCountsForAll(t *testing.T) {
	t.Parallel()

	forwarder, _ := newBatchForwarder(t, httpmtls.Options{Retries: -1}, func(w http.ResponseWriter, _ []core.WatchEvent) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(must(contract.EncodeFailures("partial", map[int]contract.Failure{7: {Status: http.StatusBadRequest}})))
	})

	err := forwarder.Forward(t.Context(), manager, many(5, "object"))
	if _, ok := errors.AsType[core.EventErrors](err); ok || core.Reason(err) != httpmtls.ReasonNotReady {
		t.Errorf("error %v, want one for the whole batch", err)
	}
}
