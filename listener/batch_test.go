package listener_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
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

	return start(p.tb, listener.FromTLS(listener.PeerOptions{}), listener.InsecureAllowAll(), handler, opts)
}

func (p fleetPKI) client(runtime core.RuntimeID) *http.Client {
	p.tb.Helper()

	return newClient(p.tb, p.ca, true, p.ca.client(p.tb, string(runtime)).pair())
}

// reply is what a sender of a batch gets to see.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *running) sendBatch(tb testing.TB, client *http.Client, events ...core.WatchEvent) reply {
	tb.Helper()

	body, err := contract.V3.Encode(events)
	if err != nil {
		tb.Fatal(err)
	}

	return r.sendBody(tb, client, contract.V3.ContentType(), bytes.NewReader(body))
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

func change(runtime core.RuntimeID, sequence uint64) core.WatchEvent {
	return core.WatchEvent{
		Kind: core.KindChanged, ID: strconv.FormatUint(sequence, 10), Source: runtime, Epoch: "e", Sequence: sequence,
		Watched:    types.NamespacedName{Namespace: "kyma-system", Name: "default"},
		WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"},
	}
}

func changes(runtime core.RuntimeID, count int) []core.WatchEvent {
	events := make([]core.WatchEvent, count)
	for i := range events {
		events[i] = change(runtime, uint64(i+1))
	}

	return events
}

func ids(deliveries []core.Delivery) (ids []string) {
	for _, d := range deliveries {
		ids = append(ids, d.Event.ID)
	}

	return ids
}

func TestBatchIsDelivered(t *testing.T) {
	t.Parallel()

	var record recorder

	pki := newFleetPKI(t)
	run := pki.start(&record, listener.Options{Hooks: record.hooks()})
	events := changes(runtimeA, contract.V3.MaxEvents())
	run.sendBatch(t, pki.client(runtimeA), events...).want(t, http.StatusAccepted, "")

	deliveries, answers := record.taken()
	have := make([]core.WatchEvent, len(deliveries))

	for i, d := range deliveries {
		if d.Runtime != runtimeA || d.Manager != manager || d.Received.IsZero() {
			t.Fatalf("delivery of %q for %q at %v", d.Runtime, d.Manager, d.Received)
		}

		have[i] = d.Event
	}

	if diff := cmp.Diff(events, have); diff != "" {
		t.Errorf("events (-want +have):\n%s", diff)
	}

	if diff := cmp.Diff([]answered{{"v3", manager, 202, ""}}, answers); diff != "" {
		t.Errorf("answers to the hook (-want +have):\n%s", diff)
	}
}

func TestBatchNamesWhatWasNotTaken(t *testing.T) {
	t.Parallel()

	var record recorder

	pki := newFleetPKI(t)
	run := pki.start(core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		switch d.Event.ID {
		case "2":
			return waitError(1500 * time.Millisecond)
		case "4":
			panic("inside")
		default:
			return record.Handle(ctx, d)
		}
	}), listener.Options{Hooks: record.hooks()})

	events := changes(runtimeA, 6)
	events[5].Source = runtimeB

	have := run.sendBatch(t, pki.client(runtimeA), events...)
	if have.status != http.StatusServiceUnavailable || have.header.Get("Retry-After") == "" {
		t.Errorf("answer %d with Retry-After %q, want 503 with one", have.status, have.header.Get("Retry-After"))
	}

	failures, ok := contract.DecodeFailures([]byte(have.body), len(events))
	if !ok {
		t.Fatalf("the answer names no failures: %s", have.body)
	}

	want := map[int]contract.Failure{
		1: {Status: http.StatusServiceUnavailable, Reason: "other", RetryAfter: 2 * time.Second},
		3: {Status: http.StatusServiceUnavailable, Reason: listener.ReasonPanic},
		5: {Status: http.StatusForbidden, Reason: listener.ReasonSourceMismatch},
	}
	if diff := cmp.Diff(want, failures); diff != "" {
		t.Errorf("failures (-want +have):\n%s", diff)
	}

	deliveries, answers := record.taken()
	if diff := cmp.Diff([]string{"1", "3", "5"}, ids(deliveries)); diff != "" {
		t.Errorf("deliveries (-want +have):\n%s", diff)
	}

	if diff := cmp.Diff([]answered{{"v3", manager, 503, listener.ReasonPartial}}, answers); diff != "" {
		t.Errorf("answers to the hook (-want +have):\n%s", diff)
	}
}

func TestBatchThatFailsAlikeIsAnsweredAsAWhole(t *testing.T) {
	t.Parallel()

	pki := newFleetPKI(t)

	t.Run("not taken", func(t *testing.T) {
		t.Parallel()

		run := pki.start(core.HandlerFunc(func(context.Context, core.Delivery) error { return errors.New("inside") }), listener.Options{})
		have := run.sendBatch(t, pki.client(runtimeA), changes(runtimeA, 3)...)
		have.want(t, http.StatusServiceUnavailable, "other")
	})

	t.Run("of another runtime", func(t *testing.T) {
		t.Parallel()

		var record recorder

		run := pki.start(&record, listener.Options{})
		run.sendBatch(t, pki.client(runtimeA), changes(runtimeB, 3)...).want(t, http.StatusForbidden, listener.ReasonSourceMismatch)

		if deliveries, _ := record.taken(); deliveries != nil {
			t.Errorf("delivered %v", ids(deliveries))
		}
	})
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
		{"no JSON", contract.V3.ContentType(), strings.NewReader("["), 400, listener.ReasonMalformed},
		{"no events", contract.V3.ContentType(), strings.NewReader("[]"), 400, listener.ReasonMalformed},
		{"event of v2", contract.V3.ContentType(), strings.NewReader(bodyV2), 400, listener.ReasonMalformed},
		{"media type of v2", "application/json", strings.NewReader("[]"), 415, listener.ReasonMediaType},
		{"media type of one event", "application/cloudevents+json", strings.NewReader("{}"), 415, listener.ReasonMediaType},
		{"too large, announced", contract.V3.ContentType(), strings.NewReader(blank), 413, listener.ReasonTooLarge},
		{"too large, not announced", contract.V3.ContentType(), io.MultiReader(strings.NewReader(blank)), 413, listener.ReasonTooLarge},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run.sendBody(t, client, test.mediaType, test.body).want(t, test.status, test.reason)
		})
	}

	if deliveries, _ := record.taken(); deliveries != nil {
		t.Errorf("delivered %v", ids(deliveries))
	}
}

func heartbeat(runtime core.RuntimeID, sequence uint64) core.WatchEvent {
	return core.WatchEvent{
		Kind: core.KindHeartbeat, ID: "heartbeat", Source: runtime, Epoch: "e",
		Heartbeat: &core.Heartbeat{Number: 1, Interval: time.Minute, Sequence: sequence},
	}
}

// ownResync is one that the runtime asks for.
func ownResync(runtime core.RuntimeID) core.WatchEvent {
	return core.WatchEvent{Kind: core.KindResync, ID: "own", Source: runtime, Epoch: "e", Sequence: 1}
}

func newFleet(tb testing.TB, opts fleet.Options) *fleet.Fleet {
	tb.Helper()

	f, err := fleet.New(opts)
	if err != nil {
		tb.Fatal(err)
	}

	return f
}

func TestHeartbeatIsForTheFleet(t *testing.T) {
	t.Parallel()

	var record recorder

	pki := newFleetPKI(t)
	watched := newFleet(t, fleet.Options{})
	run := pki.start(&record, listener.Options{Fleet: watched})
	client := pki.client(runtimeA)

	run.sendBatch(t, client, heartbeat(runtimeB, 0)).want(t, http.StatusForbidden, listener.ReasonSourceMismatch)

	for _, runtime := range []core.RuntimeID{runtimeA, runtimeB} {
		if s := watched.Get(runtime, manager); s.State != fleet.Unknown || !s.LastSeen.IsZero() {
			t.Errorf("%s is %s after a heartbeat that was refused, want unknown and never heard", runtime, s.State)
		}
	}

	run.sendBatch(t, client, ownResync(runtimeA), heartbeat(runtimeA, 1)).want(t, http.StatusAccepted, "")

	if s := watched.Get(runtimeA, manager); s.State != fleet.Fresh || len(s.Replicas) != 1 {
		t.Errorf("state %s with %d replicas, want fresh with 1", s.State, len(s.Replicas))
	}

	deliveries, _ := record.taken()
	if diff := cmp.Diff([]string{"own"}, ids(deliveries)); diff != "" {
		t.Errorf("deliveries (-want +have):\n%s", diff)
	}
}

func TestGapLeadsToOneResync(t *testing.T) {
	t.Parallel()

	asked := make(chan core.RuntimeID, 16)
	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		if d.Event.Kind == core.KindResync && d.Event.Epoch == "" {
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

	// What comes for another runtime afterwards shows that no second one comes for the first.
	for _, runtime := range []core.RuntimeID{runtimeA, runtimeB, "runtime-c"} {
		gap(runtime)

		if have := <-asked; have != runtime {
			t.Fatalf("resync of %s, want one of %s", have, runtime)
		}
	}
}
