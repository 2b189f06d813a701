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

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Encode returns the request that carries batch, cut at [Version.MaxEvents] and [Version.MaxBody].
// A heartbeat is cut to the bounds of the contract. [Version.Decode] accepts every body. Encode
// fails if the contract is unknown. It fails with the reason malformed if the batch is empty, or if
// the contract cannot express its source or epoch.
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

// usualElement is the size in bytes that most bodies of contract v3 with one element do not exceed.
const usualElement = 1 << 10

func encodeBatch(batch *core.Batch) (Request, error) {
	if batch.Source == "" {
		return Request{}, fmt.Errorf("%w: source is empty", errMalformed)
	}

	shared := element{source: sourcePrefix + url.PathEscape(string(batch.Source)), epoch: batch.Epoch}
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

// appendEvents appends events up to the first one that has no room. An event that cannot be
// expressed fails alone.
func (r *Request) appendEvents(shared element, events []core.Numbered) {
	for i := range events {
		err := r.appendEvent(&shared, &events[i])
		switch {
		case errors.Is(err, core.ErrNotSent):
			r.failFrom(i, len(events))
			return
		case err != nil:
			r.failEvent(i, err)
		default:
			r.Sent = append(r.Sent, i)
			if more := len(events) - i; len(r.Sent) == 1 && more > 1 { // Now the size of one is known.
				r.Body = slices.Grow(r.Body, min(len(r.Body)*more, maxBatchBody))
			}
		}
	}
}

func (r *Request) appendEvent(shared *element, event *core.Numbered) error {
	if err := checkEvent(event); err != nil {
		return err
	}
	shared.setEvent(event)
	return r.appendElement(shared, func(b []byte) []byte { return appendData(b, &event.WatchEvent) })
}

// appendElement takes the element back if the body is too large or has too many elements.
func (r *Request) appendElement(e *element, data func(body []byte) []byte) error {
	end := len(r.Body)
	if end > 1 {
		r.Body = append(r.Body, ',')
	}
	r.Body = append(data(e.appendTo(r.Body)), '}')
	if len(r.Sent) == maxBatchEvents || len(r.Body)+len("]") > maxBatchBody {
		r.Body = r.Body[:end]
		return core.ErrNotSent
	}
	return nil
}

// appendHeartbeat comes after all events before it are sent: its numbers include theirs.
func (r *Request) appendHeartbeat(e element, batch *core.Batch) {
	data, err := e.setHeartbeat(batch.Heartbeat)
	switch {
	case err != nil:
	case len(r.Failed) > 0:
		err = core.ErrNotSent
	default:
		err = r.appendElement(&e, func(b []byte) []byte { return append(b, data...) })
	}

	r.Heartbeat = err == nil
	if !r.Heartbeat {
		r.failEvent(len(batch.Events), err)
	}
}

// element has the attributes of an event of v3, a CloudEvent in JSON. Its extensions are the
// documented "sequence" and "distributed tracing", and epoch.
type element struct {
	id, source, kind, subject, epoch, traceParent string
	time                                          time.Time
	sequence                                      uint64
}

func (e *element) setEvent(event *core.Numbered) {
	e.id = event.ID
	e.time = wireTime(event.Time)
	e.sequence = event.Sequence
	e.traceParent = ""
	if isAttribute(event.TraceParent) {
		e.traceParent = event.TraceParent
	}
	e.kind = typeResync
	e.subject = ""
	if !event.Resync {
		e.kind = typeChanged
		e.subject = event.Watched.String()
	}
}

// The functions below append JSON byte for byte as encoding/json writes it. They append to the body
// itself, so that an event needs no separate memory.

// appendTo appends the attributes. The data must follow, and then a brace.
func (e *element) appendTo(b []byte) []byte {
	b = appendText(append(b, '{'), "specversion", specVersion)
	b = appendText(b, "id", e.id)
	b = appendText(b, "source", e.source)
	b = appendText(b, "type", e.kind)
	b = appendText(b, "subject", e.subject)
	if !e.time.IsZero() {
		b = append(e.time.AppendFormat(append(appendMember(b, "time"), '"'), time.RFC3339Nano), '"')
	}
	b = appendText(b, "datacontenttype", "application/json")
	b = appendText(b, "epoch", e.epoch)

	if e.sequence > 0 { // Padded, so that strings have the order of the numbers, as the extension demands.
		const width = "00000000000000000000"
		digits := strconv.FormatUint(e.sequence, 10)
		b = append(append(appendMember(b, "sequence"), '"'), width[len(digits):]...)
		b = append(append(b, digits...), '"')
	}
	return appendMember(appendText(b, "traceparent", e.traceParent), "data")
}

// appendData appends the data of a change. A resync has the owner only.
func appendData(b []byte, event *core.WatchEvent) []byte {
	b = appendObjectName(append(b, '{'), fieldOwner, event.Owner)
	if event.Resync {
		return append(b, '}')
	}

	b = appendObjectName(b, fieldWatched, event.Watched)
	b = appendQuoted(appendMember(append(appendMember(b, fieldWatchedGVK), '{'), "group"), event.WatchedGVK.Group)
	b = appendQuoted(appendMember(b, "version"), event.WatchedGVK.Version)
	b = append(appendText(b, "kind", event.WatchedGVK.Kind), '}')
	b = appendText(b, "operation", string(event.Operation))
	b = appendText(b, "field", string(event.Field))
	b = appendNumber(b, "generation", event.Generation)
	b = appendText(b, "uid", string(event.UID))
	return append(appendNumber(b, "base", event.Base), '}')
}

func appendObjectName(b []byte, field string, name types.NamespacedName) []byte {
	if name == (types.NamespacedName{}) {
		return b
	}
	b = appendText(append(appendMember(b, field), '{'), "namespace", name.Namespace)
	return append(appendText(b, "name", name.Name), '}')
}

// appendMember begins a member. The opening brace of the object, or another member, is before it.
func appendMember(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(b, '"'), name...), `":`...)
}

// appendText leaves out an empty text, as appendNumber does with 0.
func appendText(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendQuoted(appendMember(b, name), value)
}

func appendNumber(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	return strconv.AppendInt(appendMember(b, name), value, 10)
}

// appendQuoted leaves texts with anything but plain ASCII to encoding/json.
func appendQuoted(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(text) //nolint:errchkjson // Each string has a JSON form.
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}

// setHeartbeat returns the data.
func (e *element) setHeartbeat(sent *core.Heartbeat) ([]byte, error) {
	heartbeat := cutHeartbeat(sent)
	heartbeat.Interval /= time.Millisecond
	heartbeat.OldestPending /= time.Millisecond
	e.kind = typeHeartbeat
	e.id = heartbeat.ID
	e.time = wireTime(heartbeat.Time)
	if err := checkID(heartbeat.ID); err != nil {
		return nil, err
	}
	return json.Marshal((*heartbeatData)(&heartbeat))
}

// cutHeartbeat returns a copy within the bounds of the contract: without a heartbeat, the runtime
// would stay unknown.
func cutHeartbeat(heartbeat *core.Heartbeat) core.Heartbeat {
	c := *heartbeat
	for _, text := range textsOf(&c) {
		*text = cutText(*text)
	}

	for _, at := range timesOf(&c) {
		*at = wireTime(*at)
	}

	c.CAFingerprints = cutFingerprints(c.CAFingerprints)
	c.Dropped = cutReasons(c.Dropped)
	return c
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

// cutReasons keeps the sum of all drops: reasons without room count as other.
func cutReasons(dropped map[core.Reason]int64) map[core.Reason]int64 {
	kept := make(map[core.Reason]int64, maxReasons)
	for _, reason := range slices.Sorted(maps.Keys(dropped)) {
		hasRoom := len(dropped) <= maxReasons || len(kept) < maxReasons-1
		if hasRoom && isAttribute(string(reason)) {
			kept[reason] += dropped[reason]
		} else {
			kept[reasonOther] += dropped[reason]
		}
	}
	return kept
}

// Claim returns the batch as a runtime sends it: with runtime as Source, unless Source is set, and
// with an ID for each event without an ID, as CloudEvents require. An outbox with an epoch assigns
// an ID to each event. The batch of the caller is not changed.
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
