package contract_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

func document(t *testing.T) string {
	t.Helper()
	text := must(os.ReadFile("../../docs/reference/contract-v3.md"))(t)
	return string(text)
}

// examples returns the fenced blocks of docs/reference/contract-v3.md behind a comment "example:
// <name>", by name.
func examples(t *testing.T, language string) map[string]string {
	t.Helper()

	blocks := regexp.MustCompile("(?s)<!-- example: ([^\n]+) -->\n```(\\w+)\n(.*?)```\n").FindAllStringSubmatch(document(t), -1)
	if fences := strings.Count(document(t), "```\n"); fences != len(blocks) {
		t.Fatalf("docs/reference/contract-v3.md has %d blocks, of which %d are examples that a test replays", fences, len(blocks))
	}

	found := make(map[string]string)
	for _, block := range blocks {
		if block[2] == language {
			found[block[1]] = block[3]
		}
	}

	return found
}

// wantBatches has the meaning of each valid example. Those of v1 and v2 begin with the name of the
// contract.
func wantBatches() map[string]core.Batch {
	demo := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
	}
	owned := demo
	owned.Owner = types.NamespacedName{Namespace: "kcp-system", Name: "runtime-1"}
	full := owned
	full.Operation = core.OperationUpdate
	full.Field = core.FieldSpec
	full.Generation = 7
	full.Time = time.Date(2026, 11, 21, 3, 27, 0, 5e8, time.UTC)
	full.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	return map[string]core.Batch{
		"changed": numbered("4e3dbb281e4d424e", core.Numbered{Sequence: 7, ID: "4e3dbb281e4d424e-kyma-7", WatchEvent: full}),
		"smallest": {Source: "runtime/1", Events: []core.Numbered{{ID: "1", WatchEvent: core.WatchEvent{
			Watched: types.NamespacedName{Name: "demo"}, WatchedGVK: schema.GroupVersionKind{Kind: "Namespace"},
		}}}},
		"resync": numbered("4e3dbb281e4d424e", core.Numbered{Sequence: 1, ID: "4e3dbb281e4d424e-kyma-1", WatchEvent: core.WatchEvent{
			Resync: true, Time: time.Date(2026, 11, 21, 3, 27, 0, 0, time.UTC),
		}}),
		"heartbeat": {Source: "runtime-1", Epoch: "4e3dbb281e4d424e", Heartbeat: documentedHeartbeat()},
		"batch": {
			Source: "runtime-1", Epoch: "4e3dbb281e4d424e",
			Events: []core.Numbered{
				{Sequence: 1, ID: "4e3dbb281e4d424e-kyma-1", WatchEvent: core.WatchEvent{Resync: true}},
				{Sequence: 2, ID: "4e3dbb281e4d424e-kyma-2-1", WatchEvent: demo},
			},
			Heartbeat: &core.Heartbeat{
				ID: "4e3dbb281e4d424e-kyma-heartbeat-1", Number: 1, Interval: 30 * time.Second,
				Sequence: 2, Pending: 2, OldestPending: 100 * time.Millisecond,
			},
		},
		"leaving": {Source: "runtime-1", Epoch: "4e3dbb281e4d424e", Heartbeat: &core.Heartbeat{
			ID: "4e3dbb281e4d424e-kyma-heartbeat-4", Number: 4, Interval: 30 * time.Second, Leaving: true, Sequence: 7,
		}},
		"v1":        core.NewBatch(owned),
		"v2":        core.NewBatch(demo),
		"v2-resync": core.NewBatch(core.WatchEvent{Resync: true}),
	}
}

func numbered(epoch string, events ...core.Numbered) core.Batch {
	return core.Batch{Source: "runtime-1", Epoch: epoch, Events: events}
}

func documentedHeartbeat() *core.Heartbeat {
	return &core.Heartbeat{
		ID: "4e3dbb281e4d424e-kyma-heartbeat-3", Time: time.Date(2026, 11, 21, 3, 28, 0, 0, time.UTC),
		Number: 3, Interval: 30 * time.Second, Instance: "agent-0",
		Sequence: 7, Pending: 2, OldestPending: 1500 * time.Millisecond, Dropped: map[core.Reason]int64{"overflow": 5},
		Version:                "1.2.3",
		CertificateFingerprint: "0c11dec237894b65cf523087297807a7bb3584c805c6983e3c61b3e50a5db228",
		CertificateExpiry:      time.Date(2026, 12, 21, 0, 0, 0, 0, time.UTC),
		CAFingerprints:         []string{"a4da683edd8d47ddb00c597f66e56ff7746563b187f179fe8fe84e2dbeed4aed"},
		KeyMaterialError:       "tls.key: no PEM block",
		Canary:                 core.CanaryAlive,
		LastReview:             time.Date(2026, 11, 21, 3, 27, 48, 0, time.UTC),
		WebhookFailures:        1,
		ConfigHash:             "cd79ce5a268e5cdd",
	}
}

// wantFaults has a part of the error of each invalid example.
func wantFaults() map[string]string {
	return map[string]string{
		"empty":             "no events",
		"no-kind":           "watchedGvk.kind is empty",
		"two-sources":       "source or epoch differs",
		"heartbeat-first":   "heartbeat as the last element",
		"unknown-type":      "type is",
		"other-source":      "source is",
		"negative-sequence": "sequence is",
	}
}

func versionOf(name string) contract.Version {
	version, _, _ := strings.Cut(name, "-")
	if v, err := contract.ParseVersion(version); err == nil {
		return v
	}
	return contract.V3
}

// Each batch in contract-v3.md is decoded to the events that the page describes, and encoded to the
// same batch again.
func TestDocumentedBatchesMeanWhatIsSaid(t *testing.T) {
	t.Parallel()

	shown := examples(t, "json")
	for name, want := range wantBatches() {
		v := versionOf(name)
		got, err := v.Decode([]byte(shown[name]))
		if err != nil {
			t.Errorf("%s is refused: %v", name, err)
			continue
		}

		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		again, err := v.Decode(encode(t, v, got)) // This end sends the shown batch, whole.
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Errorf("%s: encoded and decoded again: %v\n%s", name, err, diff)
		}
	}

	if want := len(wantBatches()) + len(wantFaults()); len(shown) != want {
		t.Errorf("docs/reference/contract-v3.md has %d examples of batches, of which %d are checked", len(shown), want)
	}
}

// Each faulty batch in contract-v3.md is refused with the error that the page names.
func TestDocumentedFaultsAreRefused(t *testing.T) {
	t.Parallel()

	shown := examples(t, "json")
	for name, want := range wantFaults() {
		if _, err := contract.V3.Decode([]byte(shown[name])); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got the error %v, want one with %q", name, err, want)
		}
	}
}

// meant is the meaning of an answer for the sender: of the whole request, or by index.
type meant struct {
	whole   contract.Meaning
	byIndex map[int]contract.Meaning
	wait    time.Duration // of the highest index
}

func wantAnswers() map[string]meant {
	return map[string]meant{
		"answer partial, elements 4": {
			byIndex: map[int]contract.Meaning{
				1: {Reason: reasons.Forbidden, Cause: core.ErrForbidden, Slow: true},
				2: {Reason: reasons.NotReady, Cause: core.ErrNotReady},
			},
			wait: 7 * time.Second,
		},
		"answer forbidden, elements 2": {
			whole: contract.Meaning{Reason: reasons.Forbidden, Cause: core.ErrForbidden, Slow: true},
		},
		"answer malformed, elements 1": {whole: contract.Meaning{Reason: reasons.Malformed, Permanent: true}},
		"answer too-fast, elements 1":  {whole: contract.Meaning{Reason: reasons.TooFast, Cause: core.ErrNotReady}},
		"answer unknown-manager, elements 1": {
			whole: contract.Meaning{Reason: reasons.UnknownManager, Cause: core.ErrUnknownManager},
		},
		"answer unknown-contract, elements 1": {
			whole: contract.Meaning{Reason: reasons.UnknownContract, Cause: core.ErrUnknownManager},
		},
		"answer gateway, elements 1":       {whole: contract.Meaning{Reason: reasons.GatewayRefused, Slow: true}},
		"answer index-outside, elements 1": {whole: contract.Meaning{Reason: "client_error"}},
	}
}

// A sender reads each answer in contract-v3.md as the page describes it.
func TestDocumentedAnswersMeanWhatIsSaid(t *testing.T) {
	t.Parallel()

	shown := examples(t, "http")
	for name, want := range wantAnswers() {
		got, ok := interpret(t, name, shown[name])
		if !ok {
			t.Errorf("%s: want a status line, headers and a body, have %q", name, shown[name])
			continue
		}

		if diff := cmp.Diff(want, got, cmp.AllowUnexported(meant{}), cmpopts.EquateErrors()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	if len(shown) != len(wantAnswers()) {
		t.Errorf("docs/reference/contract-v3.md has %d answers, of which %d are checked", len(shown), len(wantAnswers()))
	}
}

// interpret reads an answer as a sender does.
func interpret(t *testing.T, name, text string) (m meant, ok bool) {
	t.Helper()

	head, body, ok := strings.Cut(text, "\n\n")
	if !ok {
		return meant{}, false
	}
	status := number(t, regexp.MustCompile(`^HTTP/1\.1 (\d+) `).FindStringSubmatch(head))
	elements := number(t, regexp.MustCompile(`elements (\d+)$`).FindStringSubmatch(name))
	answer := contract.DecodeAnswer(status, []byte(body), elements)
	if len(answer.Failed) == 0 {
		m.whole = contract.V3.Interpret(answer.Refusal, strings.Contains(head, "text/html"))
		return m, true
	}
	m.byIndex = make(map[int]contract.Meaning)
	for index, refusal := range answer.Failed {
		m.byIndex[index] = contract.V3.Interpret(refusal, false)
		m.wait = max(m.wait, refusal.RetryAfter)
	}

	return m, true
}

func number(t *testing.T, match []string) int {
	t.Helper()

	if match == nil {
		t.Fatal("no number")
	}
	return must(strconv.Atoi(match[1]))(t)
}

// The document names every path, bound, type, member of a heartbeat and reason that is in the code.
func TestDocumentIsComplete(t *testing.T) {
	t.Parallel()

	text := document(t)
	want := []string{
		"com.github.runtime-watcher.changed", "com.github.runtime-watcher.resync", "com.github.runtime-watcher.heartbeat",
		reasons.UnknownManager, reasons.MediaType, reasons.TooLarge, reasons.Malformed,
		reasons.Unreadable, reasons.Unauthenticated, reasons.NotReady, reasons.Busy,
		reasons.ShuttingDown, reasons.TooFast, reasons.Partial, reasons.Panic,
		strconv.Itoa(contract.V3.MaxEvents()) + " elements",
	}

	for _, v := range contract.Versions() {
		path := strings.Replace(v.Path("manager"), "manager", "<manager>", 1)
		want = append(want, path, v.ContentType(), strconv.Itoa(v.MaxBody())+" bytes", strconv.Itoa(v.Status()))
	}

	beat := documentedHeartbeat()
	beat.Leaving = true
	for _, member := range members(t, core.Batch{Source: "runtime-1", Epoch: "e", Heartbeat: beat}) {
		if member != "overflow" {
			want = append(want, "| `"+member+"`")
		}
	}

	event := fullEvent(time.Time{})
	event.UID = "4d0e5b6c"
	event.Base = 1
	for _, member := range members(t, core.Batch{Source: "runtime-1", Events: []core.Numbered{{WatchEvent: event}}}) {
		want = append(want, "`"+member+"`")
	}

	for _, name := range want {
		if !strings.Contains(text, name) {
			t.Errorf("docs/reference/contract-v3.md does not name %s", name)
		}
	}
}

// members returns the names of all members of the JSON of a batch.
func members(t *testing.T, batch core.Batch) (names []string) {
	t.Helper()

	request := must(contract.V3.Encode(&batch))(t)
	for _, member := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(string(request.Body), -1) {
		names = append(names, member[1])
	}

	return names
}
