package contract

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The types of the CloudEvents of contract v3.
const (
	TypeChanged   = "com.github.runtime-watcher.changed"
	TypeResync    = "com.github.runtime-watcher.resync"
	TypeHeartbeat = "com.github.runtime-watcher.heartbeat"
)

const (
	specVersion  = "1.0"
	sourcePrefix = "/runtimes/"
	// maxBatchEvents and maxBatchBody bound a batch.
	maxBatchEvents = 500
	maxBatchBody   = 256 << 10
	// maxAttribute bounds the attributes of an event and the texts of a heartbeat, in bytes.
	maxAttribute = 512
)

// cloudEvent is an event of v3 in the JSON format of CloudEvents 1.0. Its extensions are the
// documented "sequence" and "distributed tracing", and epoch.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject,omitempty"`
	Time            time.Time `json:"time,omitzero"`
	DataContentType string    `json:"datacontenttype"`
	Epoch           string    `json:"epoch,omitempty"`
	Sequence        string    `json:"sequence,omitempty"`
	TraceParent     string    `json:"traceparent,omitempty"`
	Data            any       `json:"data"`
}

type changedData struct {
	Owner      *objectName    `json:"owner,omitempty"`
	Watched    *objectName    `json:"watched,omitempty"`
	WatchedGVK *gvk           `json:"watchedGvk,omitempty"`
	Operation  core.Operation `json:"operation,omitempty"`
	Field      core.Field     `json:"field,omitempty"`
	Generation int64          `json:"generation,omitempty"`
}

type objectName struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// encodeBatch encodes as many events as fit into a request, and the heartbeat behind the last one.
func encodeBatch(batch *core.Batch) (Request, error) {
	if err := checkClaim(batch); err != nil {
		return Request{}, err
	}

	r := Request{Body: []byte{'['}}
	r.appendEvents(batch)

	if batch.Heartbeat != nil {
		r.appendHeartbeat(batch)
	}

	return r.close(), nil
}

func (r *Request) appendEvents(batch *core.Batch) {
	for i := range batch.Events {
		body, err := encodeNumbered(batch, &batch.Events[i])

		switch {
		case err != nil:
			r.fail(i, err)
		case len(r.Sent) == maxBatchEvents || !r.append(body):
			r.failFrom(i, len(batch.Events))

			return
		default:
			r.Sent = append(r.Sent, i)
		}
	}
}

// append adds an element to the body, unless it has no room.
func (r *Request) append(element []byte) bool {
	if len(r.Body)+len(element)+len(",]") > maxBatchBody {
		return false
	}

	if len(r.Body) > 1 {
		r.Body = append(r.Body, ',')
	}

	r.Body = append(r.Body, element...)

	return true
}

// appendHeartbeat adds the heartbeat when all events before it are sent: its numbers include
// theirs.
func (r *Request) appendHeartbeat(batch *core.Batch) {
	body, err := encodeHeartbeat(batch)

	switch {
	case err != nil:
		r.fail(len(batch.Events), err)
	case len(r.Failed) > 0 || len(r.Sent) == maxBatchEvents || !r.append(body):
		r.fail(len(batch.Events), core.ErrNotSent)
	default:
		r.Heartbeat = true
	}
}

// close ends the array.
func (r *Request) close() Request {
	if len(r.Body) == 1 {
		r.Body = nil

		return *r
	}

	r.Body = append(r.Body, ']')

	return *r
}

func encodeNumbered(batch *core.Batch, event *core.Numbered) ([]byte, error) {
	if err := checkEvent(event); err != nil {
		return nil, err
	}

	c := newCloudEvent(batch, event.ID, event.Time)
	if isAttribute(event.TraceParent) {
		c.TraceParent = event.TraceParent
	}

	if event.Sequence > 0 {
		c.Sequence = formatSequence(event.Sequence)
	}

	if event.Resync {
		c.Type, c.Data = TypeResync, &changedData{Owner: fromName(event.Owner)}
	} else {
		c.Type, c.Subject, c.Data = TypeChanged, event.Watched.String(), fromChanged(&event.WatchEvent)
	}

	return marshal(&c)
}

func newCloudEvent(batch *core.Batch, id string, at time.Time) cloudEvent {
	return cloudEvent{
		SpecVersion:     specVersion,
		ID:              id,
		Source:          formatSource(batch.Source),
		Time:            wireTime(at),
		DataContentType: "application/json",
		Epoch:           batch.Epoch,
	}
}

func marshal(c *cloudEvent) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}

	return body, nil
}

func fromChanged(event *core.WatchEvent) *changedData {
	kind := gvk(event.WatchedGVK)

	return &changedData{
		Owner:      fromName(event.Owner),
		Watched:    fromName(event.Watched),
		WatchedGVK: &kind,
		Operation:  event.Operation,
		Field:      event.Field,
		Generation: event.Generation,
	}
}

func fromName(name types.NamespacedName) *objectName {
	if name == (types.NamespacedName{}) {
		return nil
	}

	return &objectName{Namespace: name.Namespace, Name: name.Name}
}

func formatSource(id core.RuntimeID) string { return sourcePrefix + url.PathEscape(string(id)) }

func parseSource(source string) (core.RuntimeID, error) {
	escaped, ok := strings.CutPrefix(source, sourcePrefix)

	id, err := url.PathUnescape(escaped)
	if !ok || err != nil || id == "" {
		return "", fmt.Errorf("source is %.80q, want %s<runtime>", source, sourcePrefix)
	}

	return core.RuntimeID(id), nil
}

// formatSequence pads a number, so that strings have the order of the numbers, as the extension
// demands.
func formatSequence(n uint64) string {
	const width = "00000000000000000000"

	digits := strconv.FormatUint(n, 10)

	return width[len(digits):] + digits
}

func parseSequence(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}

	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("sequence is %.40q, want a decimal number", text)
	}

	return n, nil
}

// wireTime returns t, and no time when RFC 3339 cannot express it: a time is informative.
func wireTime(t time.Time) time.Time {
	const lastYear = 9999

	if t = t.UTC(); t.Year() < 0 || t.Year() > lastYear {
		return time.Time{}
	}

	return t
}

// checkClaim is the validation of the attributes that all elements of a batch share.
func checkClaim(batch *core.Batch) error {
	if batch.Source == "" {
		return fmt.Errorf("%w: source is empty", ErrMalformed)
	}

	return cmp.Or(checkAttribute("source", formatSource(batch.Source)), checkAttribute("epoch", batch.Epoch))
}

func checkID(id string) error {
	if id == "" {
		return fmt.Errorf("%w: id is empty", ErrMalformed)
	}

	return checkAttribute("id", id)
}

func checkAttribute(name, value string) error {
	if isAttribute(value) {
		return nil
	}

	return fmt.Errorf("%w: attribute %s has %d bytes, want at most %d of UTF-8",
		ErrMalformed, name, len(value), maxAttribute)
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
		checkName("field", string(event.Field), false))
}
