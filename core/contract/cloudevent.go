package contract

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

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
	// maxAttribute bounds the texts of one event that are no names.
	maxAttribute = 512
)

// cloudEvent is an event of v3 in the JSON format of CloudEvents 1.0. Its extensions are the documented "sequence"
// and "distributed tracing", and epoch.
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

	if len(body) > maxBatchBody {
		return nil, fmt.Errorf("%w: %d events have %d bytes, want at most %d", ErrTooLarge, len(events), len(body), maxBatchBody)
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

	switch event.Kind {
	case core.KindHeartbeat:
		c.Type, c.Data = TypeHeartbeat, fromHeartbeat(event.Heartbeat)
	case core.KindResync:
		c.Type, c.Data = TypeResync, &changedData{Owner: fromName(event.Owner)}
	case core.KindChanged:
		c.Type, c.Subject, c.Data = TypeChanged, event.Watched.String(), fromChanged(event)
	default:
		return cloudEvent{}, fmt.Errorf("%w: kind is %s", ErrMalformed, event.Kind)
	}

	return c, nil
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

func fromHeartbeat(beat *core.Heartbeat) *heartbeatData {
	return &heartbeatData{
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

func parseSource(source string) (core.RuntimeID, error) {
	escaped, ok := strings.CutPrefix(source, sourcePrefix)

	id, err := url.PathUnescape(escaped)
	if !ok || err != nil || id == "" {
		return "", fmt.Errorf("source is %.80q, want %s<runtime>", source, sourcePrefix)
	}

	return core.RuntimeID(id), nil
}

// formatSequence writes a number so that the order of the strings is that of the numbers, as the extension demands.
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
		return cmp.Or(checkOwner(event), checkWatched(event))
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
