package contract_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// manyEvents returns a batch of numbered events, each with that many bytes more than it needs.
func manyEvents(count, extra int) core.Batch {
	batch := core.Batch{Source: "runtime-1", Epoch: "4f2a"}
	for n := range count {
		event := fullEvent(time.Unix(1_700_000_000, 0).UTC())
		event.TraceParent = ""
		event.Watched.Name = fmt.Sprint("object-", n, strings.Repeat("x", extra))
		batch.Events = append(batch.Events, core.Numbered{
			WatchEvent: event, Sequence: uint64(n + 1), ID: fmt.Sprint("4f2a-kyma-", n+1),
		})
	}

	return batch
}

// checkRequest fails t unless a request fits into its bounds, is decoded to exactly the elements
// that it names as sent, and accounts for all others.
func checkRequest(t *testing.T, batch *core.Batch, request *contract.Request) {
	t.Helper()

	if len(request.Body) > contract.V3.MaxBody() {
		t.Fatalf("the body has %d bytes, want at most %d", len(request.Body), contract.V3.MaxBody())
	}

	checkAccounts(t, batch, request)
	if request.Body == nil {
		return
	}
	sent := core.Batch{Source: batch.Source, Epoch: batch.Epoch}
	for _, i := range request.Sent {
		sent.Events = append(sent.Events, batch.Events[i])
	}

	got, err := contract.V3.Decode(request.Body)
	if err != nil {
		t.Fatalf("Decode refuses what Encode returned: %v", err)
	}
	if (got.Heartbeat != nil) != request.Heartbeat {
		t.Fatalf("the body has a heartbeat: %v, want %v", got.Heartbeat != nil, request.Heartbeat)
	}

	got.Heartbeat = nil
	if diff := cmp.Diff(sent, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the body carries other events than are named (-named +carried):\n%s", diff)
	}
}

// checkAccounts fails t unless each element is either sent or failed, and all before a sent one
// that are not sent are malformed.
func checkAccounts(t *testing.T, batch *core.Batch, request *contract.Request) {
	t.Helper()

	elements := len(batch.Events)
	if batch.Heartbeat != nil {
		elements++
	}
	sent := slices.Clone(request.Sent)
	if request.Heartbeat {
		sent = append(sent, len(batch.Events))
	}

	if !slices.IsSorted(sent) || len(slices.Compact(slices.Clone(sent))) != len(sent) {
		t.Fatalf("sent %v, want an order without repetition", sent)
	}

	for i := range elements {
		if failed := request.Failed[i]; slices.Contains(sent, i) != (failed == nil) {
			t.Fatalf("element %d is sent: %v, and fails with %v", i, slices.Contains(sent, i), failed)
		} else if errors.Is(failed, core.ErrNotSent) && len(sent) > 0 && i < sent[len(sent)-1] {
			t.Fatalf("element %d is not sent, but element %d is", i, sent[len(sent)-1])
		}
	}

	if len(request.Failed)+len(sent) != elements {
		t.Fatalf("%d elements sent and %d failed, want %d together", len(sent), len(request.Failed), elements)
	}
}

// Full batches of real events are larger than a body may be.
func TestEncodeCutsByBytes(t *testing.T) {
	t.Parallel()

	batch := manyEvents(500, 240)
	batch.Heartbeat = fullHeartbeat(time.Unix(1_700_000_000, 0))
	total := len(batch.Events)
	requests := 0
	for ; !batch.IsEmpty(); requests++ {
		request, err := contract.V3.Encode(&batch)
		if err != nil || len(request.Sent) == 0 && !request.Heartbeat {
			t.Fatalf("request %d: Encode = %v, and sends nothing", requests, err)
		}

		checkRequest(t, &batch, &request)
		if len(request.Failed) > 0 && len(request.Body) < contract.V3.MaxBody()*9/10 {
			t.Errorf("request %d is cut at %d bytes, want it nearly full", requests, len(request.Body))
		}

		total -= len(request.Sent)
		batch = rest(&batch, &request)
	}

	if total != 0 || requests < 2 || requests > 3 {
		t.Errorf("%d events are left after %d requests, want none after 2 or 3", total, requests)
	}
}

// rest returns the elements of a batch that were not sent.
func rest(batch *core.Batch, request *contract.Request) core.Batch {
	next := core.Batch{Source: batch.Source, Epoch: batch.Epoch}
	for i := range batch.Events {
		if errors.Is(request.Failed[i], core.ErrNotSent) {
			next.Events = append(next.Events, batch.Events[i])
		}
	}

	if !request.Heartbeat {
		next.Heartbeat = batch.Heartbeat
	}
	return next
}

func TestEncodeCutsByEvents(t *testing.T) {
	t.Parallel()

	beating := manyEvents(500, 0)
	beating.Heartbeat = fullHeartbeat(time.Unix(1_700_000_000, 0))
	for _, batch := range []core.Batch{beating, manyEvents(501, 0)} {
		request, err := contract.V3.Encode(&batch)
		if err != nil || len(request.Sent) != 500 || !errors.Is(request.Failed[500], core.ErrNotSent) {
			t.Errorf("Encode sends %d events, %v, the last %v", len(request.Sent), err, request.Failed[500])
		}
		checkRequest(t, &batch, &request)
	}
}

// An event that the contract cannot express fails alone, with a permanent error. The other events
// of the batch are sent.
func TestUnsendableEvents(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 600)
	for name, change := range map[string]func(*core.Numbered){
		"no id":          func(e *core.Numbered) { e.ID = "" },
		"long id":        func(e *core.Numbered) { e.ID = long },
		"id not UTF-8":   func(e *core.Numbered) { e.ID = "\xff" },
		"no name":        func(e *core.Numbered) { e.Watched.Name = "" },
		"no kind":        func(e *core.Numbered) { e.WatchedGVK.Kind = "" },
		"long operation": func(e *core.Numbered) { e.Operation = core.Operation(long) },
		"half an owner":  func(e *core.Numbered) { e.Owner.Name = "" },
	} {
		batch := manyEvents(3, 0)
		batch.Heartbeat = fullHeartbeat(time.Unix(1_700_000_000, 0))
		change(&batch.Events[1])
		request, err := contract.V3.Encode(&batch)
		if err != nil || !slices.Equal(request.Sent, []int{0, 2}) {
			t.Fatalf("%s: Encode = %+v, %v, want the events 0 and 2", name, request, err)
		}

		if failed := request.Failed[1]; !errors.Is(failed, contract.ErrMalformed) || !core.IsPermanent(failed) {
			t.Errorf("%s: event 1 fails with %v, want ErrMalformed", name, failed)
		}
		// The numbers of the heartbeat include those of the event: a receiver would see a gap.
		if !errors.Is(request.Failed[3], core.ErrNotSent) {
			t.Errorf("%s: the heartbeat fails with %v, want ErrNotSent", name, request.Failed[3])
		}
		checkRequest(t, &batch, &request)
	}
}

// A batch whose source or epoch cannot be expressed is refused as a whole, because each event
// carries both.
func TestUnsendableClaims(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 600)
	for name, change := range map[string]func(*core.Batch){
		"no source":       func(b *core.Batch) { b.Source = "" },
		"long source":     func(b *core.Batch) { b.Source = core.RuntimeID(long) },
		"escaped source":  func(b *core.Batch) { b.Source = core.RuntimeID(strings.Repeat("/", 200)) },
		"long epoch":      func(b *core.Batch) { b.Epoch = long },
		"epoch not UTF-8": func(b *core.Batch) { b.Epoch = "\xff" },
	} {
		batch := manyEvents(1, 0)
		change(&batch)
		if request, err := contract.V3.Encode(&batch); !errors.Is(err, contract.ErrMalformed) || request.Body != nil {
			t.Errorf("%s: Encode = %+v, %v, want ErrMalformed", name, request, err)
		}
	}
}

// Times and traces are informative: an event does not fail for them.
func TestOddTimesAndTracesAreLeftOut(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*core.Numbered){
		"year 10000":      func(e *core.Numbered) { e.Time = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"before Christ":   func(e *core.Numbered) { e.Time = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) },
		"long trace":      func(e *core.Numbered) { e.TraceParent = strings.Repeat("x", 600) },
		"trace not UTF-8": func(e *core.Numbered) { e.TraceParent = "\xff" },
	} {
		batch := manyEvents(1, 0)
		batch.Events[0].Time = time.Time{}
		want := manyEvents(1, 0)
		want.Events[0].Time = time.Time{}
		change(&batch.Events[0])

		got, err := contract.V3.Decode(encode(t, contract.V3, batch))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A heartbeat beyond the bounds is cut: without it the runtime would stay unknown.
func TestHeartbeatsAreCut(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("ä", 10_000)
	beat := fullHeartbeat(time.Unix(1_700_000_000, 0).UTC())
	beat.KeyMaterialError = long
	beat.Version = "\xff1.2.3"
	beat.Canary = core.CanaryState(long)
	beat.CertificateExpiry = time.Date(99_999, 1, 1, 0, 0, 0, 0, time.UTC)
	beat.CAFingerprints = slices.Repeat([]string{strings.Repeat("a", 64)}, 100)
	beat.Dropped = map[core.Reason]int64{core.Reason(long): 3, "\xff": 4}
	for n := range 100 {
		beat.Dropped[core.Reason(fmt.Sprint("reason_", n))] = 1
	}

	got := must(contract.V3.Decode(encode(t, contract.V3, core.Batch{Source: "r", Heartbeat: beat})))(t)
	h := got.Heartbeat
	if h.KeyMaterialError != long[:512] || h.Version != "1.2.3" || !h.CertificateExpiry.IsZero() ||
		len(h.CAFingerprints) != 64 {
		t.Errorf("the heartbeat is cut to %+v", h)
	}

	var sum int64
	for _, n := range h.Dropped {
		sum += n
	}

	if len(h.Dropped) > 32 || sum != 107 || h.Dropped["reason_0"] != 1 {
		t.Errorf("%d reasons with %d drops, want at most 32 with 107", len(h.Dropped), sum)
	}
	if len(beat.Dropped) != 102 || len(beat.CAFingerprints) != 100 {
		t.Error("Encode changed the heartbeat")
	}
}

// TestExactLimits has what just fits, and arrives whole.
func TestExactLimits(t *testing.T) {
	t.Parallel()

	batch := manyEvents(400, 100)
	request, _ := contract.V3.Encode(&batch)
	batch.Events = batch.Events[:len(request.Sent)-2]
	batch.Events[0].ID = strings.Repeat("i", 512)
	batch.Events[0].Time = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	request, _ = contract.V3.Encode(&batch)

	for i, room := 0, contract.V3.MaxBody()-len(request.Body); room > 0; i++ {
		more := min(room, 100)
		batch.Events[i+1].ID += strings.Repeat("i", more)
		room -= more
	}

	for _, fits := range []bool{true, false} {
		request, _ = contract.V3.Encode(&batch)
		checkRequest(t, &batch, &request)
		if (len(request.Sent) == len(batch.Events)) != fits || fits && len(request.Body) != contract.V3.MaxBody() {
			t.Errorf("%d of %d events are sent in %d bytes, want all: %v",
				len(request.Sent), len(batch.Events), len(request.Body), fits)
		}
		batch.Events[1].ID += "i"
	}

	beat := fullHeartbeat(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC))
	beat.CAFingerprints = slices.Repeat([]string{"a"}, 64)
	beat.Dropped = map[core.Reason]int64{}
	for n := range 31 {
		beat.Dropped[core.Reason(fmt.Sprint("reason_", n))] = 1
	}

	beat.Dropped[core.Reason(strings.Repeat("r", 512))] = 1
	got := must(contract.V3.Decode(encode(t, contract.V3, core.Batch{Source: "r", Heartbeat: beat})))(t)
	if diff := cmp.Diff(beat, got.Heartbeat); diff != "" {
		t.Errorf("the heartbeat (-sent +got):\n%s", diff)
	}
}

// FuzzEncode makes batches of random elements, within the bounds and beyond.
func FuzzEncode(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		batch := randomBatch(random)
		request, err := contract.V3.Encode(&batch)
		if batch.IsEmpty() {
			if !errors.Is(err, contract.ErrMalformed) {
				t.Fatalf("Encode of an empty batch = %v", err)
			}
			return
		}

		if err != nil {
			t.Fatal(err)
		}
		checkRequest(t, &batch, &request)
	})
}

func randomBatch(random *rand.Rand) core.Batch {
	batch := manyEvents(random.IntN(4)*random.IntN(200), random.IntN(200))
	for i := range batch.Events {
		if random.IntN(10) == 0 {
			spoil(random, &batch.Events[i])
		}
	}

	if random.IntN(2) == 0 {
		batch.Heartbeat = randomHeartbeat(random)
	}
	return batch
}

func spoil(random *rand.Rand, event *core.Numbered) {
	switch random.IntN(5) {
	case 0:
		event.ID = randomText(random)
	case 1:
		event.Watched.Name = randomText(random)
	case 2:
		event.Owner.Namespace = randomText(random)
	case 3:
		event.WatchedGVK.Group = randomText(random)
	default:
		event.WatchEvent = core.WatchEvent{Resync: true, Time: event.Time}
	}
}

func randomHeartbeat(random *rand.Rand) *core.Heartbeat {
	beat := &core.Heartbeat{
		ID:                     "h",
		Time:                   time.Unix(random.Int64(), 0),
		Number:                 random.Uint64(),
		Interval:               time.Duration(random.Int64()) - math.MaxInt64/2,
		Instance:               randomText(random),
		Pending:                random.Int64(),
		Version:                randomText(random),
		CertificateFingerprint: randomText(random),
		CertificateExpiry:      time.Unix(random.Int64(), 0),
		CAFingerprints:         make([]string, random.IntN(200)),
		KeyMaterialError:       randomText(random),
		ConfigError:            randomText(random),
		Canary:                 core.CanaryState(randomText(random)),
		CanaryError:            randomText(random),
		WebhookError:           randomText(random),
		LastReview:             time.Unix(-random.Int64(), 0),
		ConfigHash:             randomText(random),
		Interruption: core.Interruption{
			Reason: core.Reason(randomText(random)), Error: randomText(random),
			Since: time.Unix(random.Int64(), 0), Until: time.Unix(-random.Int64(), 0),
		},
		Dropped: map[core.Reason]int64{},
	}

	for i := range beat.CAFingerprints {
		beat.CAFingerprints[i] = randomText(random)
	}

	for range random.IntN(100) {
		beat.Dropped[core.Reason(randomText(random))] = random.Int64()
	}

	return beat
}

func randomText(random *rand.Rand) string {
	part := []string{"", "x", "<", "ä", "\xff", "\"", "\x00", "\u2028"}[random.IntN(8)]
	return strings.Repeat(part, random.IntN(1000))
}
