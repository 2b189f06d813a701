package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
	// maxBatchEvents bounds a batch.
	maxBatchEvents = 500
	// maxAttribute bounds the texts of one event that are no names.
	maxAttribute = 512
)

// cloudEvent is an event of v3 in the JSON format of CloudEvents 1.0. Its extensions are those of the documented extensions
// "sequence" and "distributed tracing", and epoch.
type cloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Subject         string          `json:"subject,omitempty"`
	Time            time.Time       `json:"time,omitzero"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Epoch           string          `json:"epoch,omitempty"`
	Sequence        string          `json:"sequence,omitempty"`
	TraceParent     string          `json:"traceparent,omitempty"`
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      []byte          `json:"data_base64,omitempty"`
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

type heartbeatData struct {
	Number                 uint64           `json:"number"`
	IntervalMS             int64            `json:"intervalMs"`
	Instance               string           `json:"instance,omitempty"`
	Leaving                bool             `json:"leaving,omitempty"`
	Sequence               uint64           `json:"sequence"`
	Pending                int64            `json:"pending"`
	OldestPendingMS        int64            `json:"oldestPendingMs"`
	Dropped                map[string]int64 `json:"dropped,omitempty"`
	Version                string           `json:"version,omitempty"`
	CertificateFingerprint string           `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time        `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string         `json:"caFingerprints,omitempty"`
	KeyMaterialError       string           `json:"keyMaterialError,omitempty"`
	Canary                 core.CanaryState `json:"canary,omitempty"`
	ConfigHash             string           `json:"configHash,omitempty"`
}

func encodeBatch(events []core.WatchEvent) ([]byte, error) {
	batch := make([]cloudEvent, len(events))

	for i := range events {
		var err error
		if batch[i], err = toCloudEvent(&events[i]); err != nil {
			return nil, fmt.Errorf("event %d of the batch: %w", i, err)
		}
	}

	body, err := json.Marshal(batch)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}

	return body, nil
}

func toCloudEvent(event *core.WatchEvent) (cloudEvent, error) {
	if err := checkBatched(event); err != nil {
		return cloudEvent{}, err
	}

	c := cloudEvent{
		SpecVersion:     specVersion,
		ID:              event.ID,
		Source:          sourcePrefix + url.PathEscape(string(event.Source)),
		Time:            event.Time.UTC(),
		DataContentType: "application/json",
		Epoch:           event.Epoch,
		TraceParent:     event.TraceParent,
	}

	if event.Sequence > 0 {
		c.Sequence = formatSequence(event.Sequence)
	}

	var (
		data any
		err  error
	)

	switch event.Kind {
	case core.KindHeartbeat:
		c.Type, data = TypeHeartbeat, fromHeartbeat(event.Heartbeat)
	case core.KindResync:
		c.Type, data = TypeResync, changedData{Owner: fromName(event.Owner)}
	case core.KindChanged:
		c.Type, c.Subject, data = TypeChanged, event.Watched.String(), fromChanged(event)
	default:
		return cloudEvent{}, fmt.Errorf("%w: kind is %s", ErrMalformed, event.Kind)
	}

	if c.Data, err = json.Marshal(data); err != nil {
		return cloudEvent{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}

	return c, nil
}

func fromChanged(event *core.WatchEvent) changedData {
	kind := gvk(event.WatchedGVK)

	return changedData{
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

func (n *objectName) name() types.NamespacedName {
	if n == nil {
		return types.NamespacedName{}
	}

	return types.NamespacedName{Namespace: n.Namespace, Name: n.Name}
}

func fromHeartbeat(beat *core.Heartbeat) heartbeatData {
	return heartbeatData{
		Number:                 beat.Number,
		IntervalMS:             beat.Interval.Milliseconds(),
		Instance:               beat.Instance,
		Leaving:                beat.Leaving,
		Sequence:               beat.Sequence,
		Pending:                beat.Pending,
		OldestPendingMS:        beat.OldestPending.Milliseconds(),
		Dropped:                beat.Dropped,
		Version:                beat.Version,
		CertificateFingerprint: beat.CertificateFingerprint,
		CertificateExpiry:      beat.CertificateExpiry,
		CAFingerprints:         beat.CAFingerprints,
		KeyMaterialError:       beat.KeyMaterialError,
		Canary:                 beat.Canary,
		ConfigHash:             beat.ConfigHash,
	}
}

func (d *heartbeatData) heartbeat() *core.Heartbeat {
	return &core.Heartbeat{
		Number:                 d.Number,
		Interval:               milliseconds(d.IntervalMS),
		Instance:               d.Instance,
		Leaving:                d.Leaving,
		Sequence:               d.Sequence,
		Pending:                d.Pending,
		OldestPending:          milliseconds(d.OldestPendingMS),
		Dropped:                d.Dropped,
		Version:                d.Version,
		CertificateFingerprint: d.CertificateFingerprint,
		CertificateExpiry:      d.CertificateExpiry,
		CAFingerprints:         d.CAFingerprints,
		KeyMaterialError:       d.KeyMaterialError,
		Canary:                 d.Canary,
		ConfigHash:             d.ConfigHash,
	}
}

// milliseconds turns a foreign number into a duration, without overflow.
func milliseconds(n int64) time.Duration {
	const year = 365 * 24 * time.Hour

	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}

func decodeBatch(body []byte) ([]core.WatchEvent, error) {
	var batch []cloudEvent
	if err := json.Unmarshal(body, &batch); err != nil {
		return nil, fmt.Errorf("%w: want a batch of CloudEvents in JSON: %w", ErrMalformed, err)
	}

	if n := len(batch); n == 0 || n > maxBatchEvents {
		return nil, fmt.Errorf("%w: %d events, want 1 to %d", ErrMalformed, n, maxBatchEvents)
	}

	events := make([]core.WatchEvent, len(batch))

	for i := range batch {
		var err error
		if events[i], err = batch[i].event(); err != nil {
			return nil, fmt.Errorf("event %d of the batch: %w", i, err)
		}
	}

	return events, nil
}

func (c *cloudEvent) event() (core.WatchEvent, error) {
	event := core.WatchEvent{ID: c.ID, Epoch: c.Epoch, Time: c.Time, TraceParent: c.TraceParent}

	for _, attribute := range []struct{ name, value string }{
		{"id", c.ID}, {"source", c.Source}, {"type", c.Type}, {"epoch", c.Epoch},
	} {
		if attribute.value == "" && attribute.name != "epoch" {
			return event, fmt.Errorf("%w: attribute %s is missing", ErrMalformed, attribute.name)
		}

		if len(attribute.value) > maxAttribute {
			return event, fmt.Errorf("%w: attribute %s has %d bytes, want at most %d",
				ErrMalformed, attribute.name, len(attribute.value), maxAttribute)
		}
	}

	if c.SpecVersion != specVersion {
		return event, fmt.Errorf("%w: specversion is %.16q, want %q", ErrMalformed, c.SpecVersion, specVersion)
	}

	var err error
	if event.Source, err = parseSource(c.Source); err != nil {
		return event, err
	}

	if event.Sequence, err = parseSequence(c.Sequence); err != nil {
		return event, err
	}

	if len(c.TraceParent) > maxAttribute {
		event.TraceParent = "" // Informative, and foreign.
	}

	if err := c.readData(&event); err != nil {
		return event, err
	}

	return event, checkBatched(&event)
}

func (c *cloudEvent) readData(event *core.WatchEvent) error {
	data := []byte(c.Data)
	if len(data) == 0 {
		data = c.DataBase64
	}

	if len(data) == 0 {
		data = []byte("{}")
	}

	var (
		changed changedData
		beat    heartbeatData
		into    any = &changed
	)

	switch c.Type {
	case TypeChanged:
		event.Kind = core.KindChanged
	case TypeResync:
		event.Kind = core.KindResync
	case TypeHeartbeat:
		event.Kind, into = core.KindHeartbeat, &beat
	default:
		return fmt.Errorf("%w: type is %.80q, want one of %v", ErrMalformed, c.Type, []string{TypeChanged, TypeResync, TypeHeartbeat})
	}

	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: data of type %s: %w", ErrMalformed, c.Type, err)
	}

	if event.Kind == core.KindHeartbeat {
		event.Heartbeat = beat.heartbeat()

		return nil
	}

	event.Owner, event.Watched = changed.Owner.name(), changed.Watched.name()
	event.Operation, event.Field, event.Generation = changed.Operation, changed.Field, changed.Generation

	if changed.WatchedGVK != nil {
		event.WatchedGVK = schema.GroupVersionKind(*changed.WatchedGVK)
	}

	return nil
}

func parseSource(source string) (core.RuntimeID, error) {
	escaped, ok := strings.CutPrefix(source, sourcePrefix)

	id, err := url.PathUnescape(escaped)
	if !ok || err != nil || id == "" {
		return "", fmt.Errorf("%w: source is %.80q, want %s<runtime>", ErrMalformed, source, sourcePrefix)
	}

	return core.RuntimeID(id), nil
}

// formatSequence writes a number so that the order of the strings is that of the numbers, as the extension demands.
func formatSequence(n uint64) string { return fmt.Sprintf("%020d", n) }

func parseSequence(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}

	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: sequence is %.40q, want a decimal number", ErrMalformed, text)
	}

	return n, nil
}

// checkBatched holds what both ends demand of an event of v3.
func checkBatched(event *core.WatchEvent) error {
	if event.ID == "" || event.Source == "" {
		return fmt.Errorf("%w: id and source are needed, have %.40q and %.80q", ErrMalformed, event.ID, event.Source)
	}

	switch event.Kind {
	case core.KindHeartbeat:
		if event.Heartbeat == nil {
			return fmt.Errorf("%w: a heartbeat without content", ErrMalformed)
		}

		return checkHeartbeat(event.Heartbeat)
	case core.KindResync:
		return checkOwner(event)
	default:
		return errors.Join(checkOwner(event), checkWatched(event))
	}
}

// Bounds on what a heartbeat may say: the listener keeps it.
const (
	maxReasons      = 32
	maxFingerprints = 16
)

func checkHeartbeat(beat *core.Heartbeat) error {
	if len(beat.Dropped) > maxReasons || len(beat.CAFingerprints) > maxFingerprints {
		return fmt.Errorf("%w: %d reasons and %d CA fingerprints, want at most %d and %d",
			ErrMalformed, len(beat.Dropped), len(beat.CAFingerprints), maxReasons, maxFingerprints)
	}

	texts := append([]string{
		beat.Instance, beat.Version, beat.CertificateFingerprint, beat.KeyMaterialError, string(beat.Canary), beat.ConfigHash,
	}, beat.CAFingerprints...)
	for reason := range beat.Dropped {
		texts = append(texts, reason)
	}

	for _, text := range texts {
		if len(text) > maxAttribute {
			return fmt.Errorf("%w: a text of %d bytes in a heartbeat, want at most %d", ErrMalformed, len(text), maxAttribute)
		}
	}

	return nil
}

func checkOwner(event *core.WatchEvent) error {
	return errors.Join(
		checkName("owner.name", event.Owner.Name, event.Owner.Namespace != ""),
		checkName("owner.namespace", event.Owner.Namespace, event.Owner.Name != ""))
}

func checkWatched(event *core.WatchEvent) error {
	return errors.Join(
		checkName("watched.name", event.Watched.Name, true),
		checkName("watched.namespace", event.Watched.Namespace, false),
		checkName("watchedGvk.kind", event.WatchedGVK.Kind, true))
}
