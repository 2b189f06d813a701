package contract

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Request is an encoded batch, and the part of the batch that it carries.
type Request struct {
	// Body is nil when no event of the batch can be sent.
	Body []byte
	// Sent has the index in the batch of each event in Body, in their order.
	Sent []int
	// Heartbeat is whether Body ends with the heartbeat.
	Heartbeat bool
	// Failed names the events that Body does not carry. An event that the contract cannot express
	// has a permanent error with the reason malformed, an event without room [core.ErrNotSent]. The
	// heartbeat has the index len(batch.Events). It is sent with all events of the batch only. A
	// contract that carries no heartbeats does not name it.
	Failed core.EventErrors
}

// Encode returns the request that carries batch, cut at [Version.MaxEvents] and [Version.MaxBody].
// A heartbeat is cut to the bounds of the contract. [Version.Decode] accepts every body. Encode
// fails on an unknown contract, and with the reason malformed on an empty batch and on a source or
// an epoch that the contract cannot express.
func (v Version) Encode(batch *core.Batch) (Request, error) {
	switch {
	case v.MaxEvents() == 0:
		return Request{}, unknown(string(v))
	case batch.IsEmpty():
		return Request{}, fmt.Errorf("%w: the batch is empty", errMalformed)
	case v == V3:
		return encodeBatch(batch)
	default:
		return encodeSingle(v, batch), nil
	}
}

func (r *Request) fail(index int, err error) {
	if r.Failed == nil {
		r.Failed = core.EventErrors{}
	}
	r.Failed[index] = err
}

func (r *Request) failFrom(first, end int) {
	for i := first; i < end; i++ {
		r.fail(i, core.ErrNotSent)
	}
}

// usualElement is the size in bytes that most bodies of contract v3 with one element do not exceed.
const usualElement = 1 << 10

// encodeBatch encodes as many events as fit into a request, and the heartbeat behind the last one.
func encodeBatch(batch *core.Batch) (Request, error) {
	if batch.Source == "" {
		return Request{}, fmt.Errorf("%w: source is empty", errMalformed)
	}
	shared := &claim{source: sourcePrefix + url.PathEscape(string(batch.Source)), epoch: batch.Epoch}
	if err := cmp.Or(checkAttribute("source", shared.source), checkAttribute("epoch", shared.epoch)); err != nil {
		return Request{}, err
	}
	r := Request{
		Body: append(make([]byte, 0, usualElement), '['),
		Sent: make([]int, 0, min(len(batch.Events), maxBatchEvents)),
	}
	r.appendEvents(shared, batch.Events)
	if batch.Heartbeat != nil {
		r.appendHeartbeat(shared, batch)
	}
	if len(r.Body) == 1 {
		r.Body = nil
		return r, nil
	}
	r.Body = append(r.Body, ']')
	return r, nil
}

func (r *Request) appendEvents(shared *claim, events []core.Numbered) {
	for i := range events {
		err := checkEvent(&events[i])
		switch {
		case err != nil:
			r.fail(i, err)
		case len(r.Sent) == maxBatchEvents ||
			!r.append(func(b []byte) []byte { return appendNumbered(b, shared, &events[i]) }):
			r.failFrom(i, len(events))
			return
		default:
			r.Sent = append(r.Sent, i)
			if more := len(events) - i; len(r.Sent) == 1 && more > 1 { // Now the size of one is known.
				r.Body = slices.Grow(r.Body, min(len(r.Body)*more, maxBatchBody-len(r.Body)))
			}
		}
	}
}

// append adds an element to the body, unless it has no room.
func (r *Request) append(element func(body []byte) []byte) bool {
	end := len(r.Body)
	if end > 1 {
		r.Body = append(r.Body, ',')
	}
	r.Body = element(r.Body)
	if len(r.Body)+len("]") > maxBatchBody {
		r.Body = r.Body[:end]
		return false
	}
	return true
}

// appendHeartbeat adds the heartbeat when all events before it are sent: its numbers include
// theirs.
func (r *Request) appendHeartbeat(shared *claim, batch *core.Batch) {
	body, err := encodeHeartbeat(shared, batch.Heartbeat)
	switch {
	case err != nil:
		r.fail(len(batch.Events), err)
	case len(r.Failed) > 0 || len(r.Sent) == maxBatchEvents ||
		!r.append(func(b []byte) []byte { return append(b, body...) }):
		r.fail(len(batch.Events), core.ErrNotSent)
	default:
		r.Heartbeat = true
	}
}

func appendNumbered(b []byte, shared *claim, event *core.Numbered) []byte {
	e := envelope{
		claim: shared, kind: typeChanged, id: event.ID, time: wireTime(event.Time), sequence: event.Sequence,
	}
	if isAttribute(event.TraceParent) {
		e.traceParent = event.TraceParent
	}
	if event.Resync {
		e.kind = typeResync
		b = append(e.appendTo(b), '{')
		return append(appendObjectName(b, fieldOwner, event.Owner), "}}"...)
	}
	e.subject = event.Watched.String()
	return append(appendChanged(e.appendTo(b), &event.WatchEvent), '}')
}

// appendTo appends the event up to its data, which must follow, and then a brace.
func (e *envelope) appendTo(b []byte) []byte {
	b = append(b, '{')
	b = appendString(b, "specversion", specVersion)
	b = appendString(b, "id", e.id)
	b = appendString(b, "source", e.claim.source)
	b = appendString(b, "type", e.kind)
	b = appendOptional(b, "subject", e.subject)
	b = appendOptionalTime(b, "time", e.time)
	b = appendString(b, "datacontenttype", "application/json")
	b = appendOptional(b, "epoch", e.claim.epoch)
	b = appendSequence(b, e.sequence)
	b = appendOptional(b, "traceparent", e.traceParent)
	return appendName(b, "data")
}

// appendSequence pads a number, so that strings have the order of the numbers, as the extension
// demands.
func appendSequence(b []byte, n uint64) []byte {
	if n == 0 {
		return b
	}
	const width = "00000000000000000000"
	digits := strconv.FormatUint(n, 10)
	b = append(appendName(b, "sequence"), '"')
	b = append(b, width[len(digits):]...)
	return append(append(b, digits...), '"')
}

func appendChanged(b []byte, event *core.WatchEvent) []byte {
	b = append(b, '{')
	b = appendObjectName(b, fieldOwner, event.Owner)
	b = appendObjectName(b, fieldWatched, event.Watched)
	b = appendKind(b, event.WatchedGVK)
	b = appendOptional(b, "operation", string(event.Operation))
	b = appendOptional(b, "field", string(event.Field))
	b = appendOptionalInteger(b, "generation", event.Generation)
	b = appendOptional(b, "uid", string(event.UID))
	return append(appendOptionalInteger(b, "base", event.Base), '}')
}

func appendKind(b []byte, kind schema.GroupVersionKind) []byte {
	b = append(appendName(b, fieldWatchedGVK), '{')
	b = appendString(b, "group", kind.Group)
	b = appendString(b, "version", kind.Version)
	return append(appendString(b, "kind", kind.Kind), '}')
}

// appendObjectName leaves out an empty name.
func appendObjectName(b []byte, field string, name types.NamespacedName) []byte {
	if name == (types.NamespacedName{}) {
		return b
	}
	b = append(appendName(b, field), '{')
	b = appendOptional(b, "namespace", name.Namespace)
	return append(appendString(b, "name", name.Name), '}')
}

// wireTime returns t, and no time when RFC 3339 cannot express it: a time is informative.
func wireTime(t time.Time) time.Time {
	const lastYear = 9999
	if t = t.UTC(); t.Year() < 0 || t.Year() > lastYear {
		return time.Time{}
	}
	return t
}

func checkID(id string) error {
	if id == "" {
		return fmt.Errorf("%w: id is empty", errMalformed)
	}
	return checkAttribute("id", id)
}

func checkAttribute(name, value string) error {
	if isAttribute(value) {
		return nil
	}
	return fmt.Errorf("%w: attribute %s has %d bytes, want at most %d of UTF-8",
		errMalformed, name, len(value), maxAttribute)
}

func isAttribute(value string) bool { return len(value) <= maxAttribute && utf8.ValidString(value) }

// checkEvent is the validation of an event of v3 at both ends.
func checkEvent(event *core.Numbered) error {
	if err := checkID(event.ID); err != nil {
		return err
	}
	if event.Resync {
		return checkOwner(&event.WatchEvent)
	}
	return cmp.Or(checkOwner(&event.WatchEvent), checkWatched(&event.WatchEvent))
}

func checkOwner(event *core.WatchEvent) error {
	return cmp.Or(
		checkName("owner.namespace", event.Owner.Namespace, event.Owner.Name != ""),
		checkName("owner.name", event.Owner.Name, event.Owner.Namespace != ""))
}

func checkWatched(event *core.WatchEvent) error {
	return cmp.Or(
		checkName("watched.namespace", event.Watched.Namespace, false),
		checkName("watched.name", event.Watched.Name, true),
		checkName("watchedGvk.group", event.WatchedGVK.Group, false),
		checkName("watchedGvk.version", event.WatchedGVK.Version, false),
		checkName("watchedGvk.kind", event.WatchedGVK.Kind, true),
		checkName("operation", string(event.Operation), false),
		checkName("field", string(event.Field), false),
		checkName("uid", string(event.UID), false))
}

func encodeHeartbeat(shared *claim, sent *core.Heartbeat) ([]byte, error) {
	beat := cut(sent)
	if err := checkID(beat.ID); err != nil {
		return nil, err
	}
	beat.Interval, beat.OldestPending = beat.Interval/time.Millisecond, beat.OldestPending/time.Millisecond
	data, err := json.Marshal((*heartbeatData)(&beat))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	e := envelope{claim: shared, kind: typeHeartbeat, id: beat.ID, time: wireTime(beat.Time)}
	return append(append(e.appendTo(nil), data...), '}'), nil
}

// cut returns a heartbeat within the bounds. Foreign texts, such as an error, may be long.
func cut(beat *core.Heartbeat) core.Heartbeat {
	c := *beat
	for _, text := range textsOf(&c) {
		*text = cutText(*text)
	}
	c.CertificateExpiry, c.LastReview = wireTime(c.CertificateExpiry), wireTime(c.LastReview)
	c.CAFingerprints = cutFingerprints(c.CAFingerprints)
	c.Dropped = cutReasons(c.Dropped)
	return c
}

func textsOf(b *core.Heartbeat) []*string {
	return []*string{
		&b.Instance, &b.Version, &b.CertificateFingerprint, &b.KeyMaterialError, (*string)(&b.Canary), &b.ConfigHash,
		&b.ConfigError,
	}
}

func cutText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxAttribute)], "")
}

func cutFingerprints(fingerprints []string) []string {
	kept := slices.Clone(fingerprints[:min(len(fingerprints), maxFingerprints)])
	for i := range kept {
		kept[i] = cutText(kept[i])
	}
	return kept
}

// cutReasons keeps the sum of the counts: reasons without room are counted under [reasonOther].
func cutReasons(dropped map[string]int64) map[string]int64 {
	if fits(dropped) {
		return dropped
	}
	kept := make(map[string]int64, maxReasons)
	for _, reason := range slices.Sorted(maps.Keys(dropped)) {
		if isAttribute(reason) && len(kept) < maxReasons-1 {
			kept[reason] += dropped[reason]
		} else {
			kept[reasonOther] += dropped[reason]
		}
	}
	return kept
}

func fits(dropped map[string]int64) bool {
	for reason := range dropped {
		if !isAttribute(reason) {
			return false
		}
	}
	return len(dropped) <= maxReasons
}

func checkName(field, name string, required bool) error {
	switch {
	case required && name == "":
		return fmt.Errorf("%w: %s is empty", errMalformed, field)
	case len(name) > maxName:
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", errMalformed, field, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s is not UTF-8", errMalformed, field)
	default:
		return nil
	}
}

// Claim returns the batch as a runtime sends it: with its name, unless the batch has one, and with
// IDs for events without one, as CloudEvents require. An outbox with an epoch gives an ID to each
// event. The batch of the caller is not changed.
func Claim(batch core.Batch, runtime core.RuntimeID) core.Batch {
	batch.Source = cmp.Or(batch.Source, runtime)
	if slices.ContainsFunc(batch.Events, func(e core.Numbered) bool { return e.ID == "" }) {
		batch.Events = slices.Clone(batch.Events)
		for i := range batch.Events {
			batch.Events[i].ID = cmp.Or(batch.Events[i].ID, rand.Text())
		}
	}
	return batch
}

// Elements returns the number of elements in the body, which is that of the events and heartbeats.
func (r *Request) Elements() int {
	if r.Heartbeat {
		return len(r.Sent) + 1
	}
	return len(r.Sent)
}

// Index returns the index in a batch with that many events of an element of the body.
func (r *Request) Index(element, events int) int {
	if element < len(r.Sent) {
		return r.Sent[element]
	}
	return events
}

// Unsendable replaces the errors of the events that the contract cannot express. An event without
// room keeps [core.ErrNotSent]: it is sent with the next batch.
func (r *Request) Unsendable(permanent func(err error) error) {
	for i, err := range r.Failed {
		if !errors.Is(err, core.ErrNotSent) {
			r.Failed[i] = permanent(err)
		}
	}
}

// Result joins the events that were not sent with the result of the others.
func (r *Request) Result(err error) error {
	refused, partial := errors.AsType[core.EventErrors](err)
	switch {
	case len(r.Failed) == 0, err != nil && !partial:
		return err
	case len(refused) == 0:
		return r.Failed
	}
	all := maps.Clone(r.Failed)
	maps.Copy(all, refused)
	return all
}
