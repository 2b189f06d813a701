package listener_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const runtimeA, runtimeB = core.RuntimeID("runtime-a"), core.RuntimeID("runtime-b")

// fleetPKI starts listeners that take peers from the handshake, and clients for them.
type fleetPKI struct {
	tb testing.TB
	ca *authority
}

func newFleetPKI(tb testing.TB) fleetPKI {
	tb.Helper()
	return fleetPKI{tb, newAuthority(tb, "ca")}
}

func (p fleetPKI) start(handler core.Handler, opts listener.Options) *running {
	p.tb.Helper()
	opts.TLS = serverConfig(p.tb, p.ca, tls.RequireAndVerifyClientCert, p.ca)
	return start(p.tb, listener.FromTLSWithRoots(p.ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), handler, opts)
}

func (p fleetPKI) client(runtime core.RuntimeID) *http.Client {
	p.tb.Helper()
	return newClient(p.tb, p.ca, true, p.ca.client(p.tb, string(runtime)).pair())
}

// reply is the answer to a batch.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *running) sendBatch(tb testing.TB, client *http.Client, parts ...core.Batch) reply {
	tb.Helper()
	return r.sendBody(tb, client, contract.V3.ContentType(), bytes.NewReader(encode(tb, parts...)))
}

// encode returns the body of a request with all parts in one batch.
func encode(tb testing.TB, parts ...core.Batch) []byte {
	tb.Helper()
	batch := join(parts...)
	request, err := contract.V3.Encode(&batch)
	if err != nil || request.Failed != nil {
		tb.Fatal(err, request.Failed)
	}
	return request.Body
}

// join returns one batch with the events of all, and with the last heartbeat.
func join(parts ...core.Batch) core.Batch {
	batch := core.Batch{Source: parts[0].Source, Epoch: parts[0].Epoch}
	for _, part := range parts {
		batch.Events = append(batch.Events, part.Events...)
		batch.Heartbeat = cmp.Or(part.Heartbeat, batch.Heartbeat)
	}
	return batch
}

func (r *running) sendBody(tb testing.TB, client *http.Client, mediaType string, body io.Reader) reply {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, r.url+contract.V3.Path(manager), body)
	if err != nil {
		tb.Fatal(err)
	}
	request.Header.Set("Content-Type", mediaType)
	response, err := client.Do(request)
	if err != nil {
		tb.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return reply{response.StatusCode, response.Header, string(text)}
}

func (r reply) want(tb testing.TB, status int, reason string) {
	tb.Helper()
	body := ""
	if reason != "" {
		body = fmt.Sprintf("{\"reason\":%q}\n", reason)
	}
	if r.status != status || r.body != body {
		tb.Errorf("answer %d %q, want %d %q", r.status, r.body, status, body)
	}
}

// change is a batch with one event. Its object is named by the sequence.
func change(runtime core.RuntimeID, sequence uint64) core.Batch {
	name := strconv.FormatUint(sequence, 10)
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "kyma-system", Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
	return core.Batch{
		Source: runtime, Epoch: "e", Events: []core.Numbered{{WatchEvent: event, ID: name, Sequence: sequence}},
	}
}

func changes(runtime core.RuntimeID, count int) core.Batch {
	parts := make([]core.Batch, count)
	for i := range parts {
		parts[i] = change(runtime, uint64(i+1))
	}
	return join(parts...)
}

// names returns the names of the objects of deliveries, and "resync" for a resync.
func names(deliveries []core.Delivery) (names []string) {
	for _, d := range deliveries {
		if d.Event.Resync {
			names = append(names, "resync")
		} else {
			names = append(names, d.Event.Watched.Name)
		}
	}
	return names
}

// wantPartial expects that an answer to so many elements names the refused ones.
func (r reply) wantPartial(tb testing.TB, elements int, want map[int]contract.Refusal) {
	tb.Helper()
	if r.status != http.StatusUnprocessableEntity || r.header.Get("Retry-After") != "" {
		tb.Errorf("answer %d with Retry-After %q, want 422 without", r.status, r.header.Get("Retry-After"))
	}
	have := contract.DecodeAnswer(r.status, []byte(r.body), elements)
	if diff := gocmp.Diff(want, have.Failed); diff != "" || have.Reason != reasons.Partial {
		tb.Errorf("reason %q, want partial; refused elements (-want +have):\n%s", have.Reason, diff)
	}
}

func TestBatchIsRefused(t *testing.T) {
	t.Parallel()
	var (
		record recorder
		pki    = newFleetPKI(t)
		run    = pki.start(&record, listener.Options{})
		client = pki.client(runtimeA)
		blank  = strings.Repeat(" ", contract.V3.MaxBody()+1)
	)
	tests := []struct {
		name, mediaType string
		body            io.Reader
		status          int
		reason          string
	}{
		{"no JSON", contract.V3.ContentType(), strings.NewReader("["), 400, reasons.Malformed},
		{"no events", contract.V3.ContentType(), strings.NewReader("[]"), 400, reasons.Malformed},
		{"event of v2", contract.V3.ContentType(), strings.NewReader(bodyV2), 400, reasons.Malformed},
		{"media type of v2", "application/json", strings.NewReader("[]"), 415, reasons.MediaType},
		{"media type of one event", "application/cloudevents+json", strings.NewReader("{}"), 415, reasons.MediaType},
		{"too large, announced", contract.V3.ContentType(), strings.NewReader(blank), 413, reasons.TooLarge},
		{"too large, not announced", contract.V3.ContentType(), io.MultiReader(strings.NewReader(blank)), 413, reasons.TooLarge},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run.sendBody(t, client, test.mediaType, test.body).want(t, test.status, test.reason)
		})
	}
	if deliveries, _ := record.taken(); deliveries != nil {
		t.Errorf("delivered %v", names(deliveries))
	}
}

// heartbeat is a batch with a heartbeat only. Its canary proves that the API server calls the
// agent.
func heartbeat(runtime core.RuntimeID, sequence uint64) core.Batch {
	return core.Batch{Source: runtime, Epoch: "e", Heartbeat: &core.Heartbeat{
		ID: "heartbeat", Number: 1, Interval: time.Minute, Sequence: sequence, Canary: core.CanaryAlive,
	}}
}

// ownResync is a batch with a resync that the runtime itself asks for.
func ownResync(runtime core.RuntimeID) core.Batch {
	event := core.Numbered{WatchEvent: core.WatchEvent{Resync: true, TraceParent: "own"}, ID: "own", Sequence: 1}
	return core.Batch{Source: runtime, Epoch: "e", Events: []core.Numbered{event}}
}

func newFleet(tb testing.TB, opts fleet.Options) *fleet.Fleet {
	tb.Helper()
	f, err := fleet.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func TestGapLeadsToOneResync(t *testing.T) {
	t.Parallel()
	asked := make(chan core.RuntimeID, 16)
	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		if d.Event.Resync && d.Event.TraceParent != "own" {
			asked <- d.Runtime
		}
		return nil
	})
	pki := newFleetPKI(t)
	run := pki.start(handler, listener.Options{Fleet: newFleet(t, fleet.Options{ResyncJitter: time.Nanosecond})})
	gap := func(runtime core.RuntimeID) {
		client := pki.client(runtime)
		run.sendBatch(t, client, ownResync(runtime), change(runtime, 2)).want(t, http.StatusAccepted, "")
		run.sendBatch(t, client, change(runtime, 4), change(runtime, 6)).want(t, http.StatusAccepted, "")
	}
	// The resync of the next runtime shows that no second one comes for this one.
	for _, runtime := range []core.RuntimeID{runtimeA, runtimeB, "runtime-c"} {
		gap(runtime)
		if have := <-asked; have != runtime {
			t.Fatalf("resync of %s, want one of %s", have, runtime)
		}
	}
}
