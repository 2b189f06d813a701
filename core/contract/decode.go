package contract

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/rawjson"
)

// received is a CloudEvent as it is read. The order of its members is free: data is interpreted
// when the type is known.
type received struct {
	event       core.Numbered
	heartbeat   *core.Heartbeat
	epoch       string
	specVersion string
	source      string
	kind        string
	sequence    string
	time        string
	data        []byte
}

func decodeBatch(body []byte) (core.Batch, error) {
	var batch core.Batch

	r := rawjson.NewReader(body)
	n := 0

	err := r.Array(func() error {
		if err := readElement(r, &batch, n); err != nil {
			return fmt.Errorf("event %d of the batch: %w", n, err)
		}

		n++
		return nil
	})
	if err == nil {
		err = r.End()
	}

	switch {
	case err != nil:
		return core.Batch{}, fmt.Errorf("%w: want a batch of CloudEvents in JSON: %w", ErrMalformed, err)
	case n == 0:
		return core.Batch{}, fmt.Errorf("%w: no events, want 1 to %d", ErrMalformed, maxBatchEvents)
	default:
		return batch, nil
	}
}

// readElement reads the n-th element of a batch into it.
func readElement(r *rawjson.Reader, batch *core.Batch, n int) error {
	switch {
	case n == maxBatchEvents:
		return fmt.Errorf("%w: want at most %d events", ErrMalformed, maxBatchEvents)
	case batch.Heartbeat != nil:
		return fmt.Errorf("%w: want a heartbeat as the last element only", ErrMalformed)
	}

	var c received

	if err := r.Object(func(name string) error { return c.readAttribute(r, name) }); err != nil {
		return err
	}

	source, err := c.interpret()
	if err != nil {
		return err
	}

	if n == 0 {
		batch.Source, batch.Epoch = source, c.epoch
	}

	return c.addTo(batch, source)
}

func (c *received) addTo(batch *core.Batch, source core.RuntimeID) error {
	switch {
	case batch.Source != source || batch.Epoch != c.epoch:
		return fmt.Errorf("%w: source and epoch differ from those of the first event", ErrMalformed)
	case c.heartbeat != nil:
		batch.Heartbeat = c.heartbeat
		return nil
	}
	batch.Events = append(batch.Events, c.event)
	return checkEvent(&c.event)
}

func (c *received) readAttribute(r *rawjson.Reader, name string) (err error) {
	switch name {
	case "specversion":
		c.specVersion, err = r.Text()
	case "id":
		c.event.ID, err = r.Text()
	case "source":
		c.source, err = r.Text()
	case "type":
		c.kind, err = r.Text()
	case "time":
		c.time, err = r.Text()
	case "epoch":
		c.epoch, err = r.Text()
	case "sequence":
		c.sequence, err = r.Text()
	case "traceparent":
		c.event.TraceParent, err = r.Text()
	case "data":
		c.data, err = r.Skip()
	case "data_base64":
		c.data, err = readBase64(r)
	default:
		_, err = r.Skip()
	}
	return err
}

func readBase64(r *rawjson.Reader) ([]byte, error) {
	text, err := r.Text()
	if err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("data_base64: %w", err)
	}
	return data, nil
}

// interpret turns the attributes into an event or a heartbeat, and returns their source.
func (c *received) interpret() (source core.RuntimeID, err error) {
	if err := c.checkAttributes(); err != nil {
		return "", err
	}
	if source, err = parseSource(c.source); err != nil {
		return "", err
	}
	if c.event.Sequence, err = parseSequence(c.sequence); err != nil {
		return "", err
	}
	if c.event.Time, err = parseTime(c.time); err != nil {
		return "", err
	}
	return source, c.readData()
}

func (c *received) checkAttributes() error {
	for _, attribute := range []struct {
		name, value string
		optional    bool
	}{
		{"id", c.event.ID, false},
		{"source", c.source, false},
		{"type", c.kind, false},
		{"epoch", c.epoch, true},
		{"traceparent", c.event.TraceParent, true},
	} {
		if attribute.value == "" && !attribute.optional {
			return fmt.Errorf("%w: attribute %s is missing", ErrMalformed, attribute.name)
		}

		if err := checkAttribute(attribute.name, attribute.value); err != nil {
			return err
		}
	}

	if c.specVersion != specVersion {
		return fmt.Errorf("%w: specversion is %.16q, want %q", ErrMalformed, c.specVersion, specVersion)
	}
	return nil
}

func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time is %.40q, want a timestamp (RFC 3339)", text)
	}
	return wireTime(at), nil
}

func (c *received) readData() error {
	var err error

	r := rawjson.NewReader(c.data)

	switch c.kind {
	case typeHeartbeat:
		if c.heartbeat, err = readHeartbeat(c.data); err == nil {
			c.heartbeat.ID, c.heartbeat.Time = c.event.ID, c.event.Time
		}
	case typeResync:
		c.event.Resync = true
		err = c.readObject(r, func(name string) error { return readOwner(r, name, &c.event.WatchEvent) })
	case typeChanged:
		err = c.readObject(r, func(name string) error { return readChanged(r, name, &c.event.WatchEvent) })
	default:
		return fmt.Errorf("type is %.80q, want one of %v", c.kind, []string{typeChanged, typeResync, typeHeartbeat})
	}

	if err != nil {
		return fmt.Errorf("data of type %s: %w", c.kind, err)
	}

	return nil
}

// readObject reads data, which may be absent.
func (c *received) readObject(r *rawjson.Reader, member func(name string) error) error {
	if len(c.data) == 0 {
		return nil
	}
	if err := r.Object(member); err != nil {
		return err
	}
	return r.End()
}

// The fields of data.
const (
	fieldOwner      = "owner"
	fieldWatched    = "watched"
	fieldWatchedGVK = "watchedGvk"
)

func readOwner(r *rawjson.Reader, name string, event *core.WatchEvent) error {
	if name == fieldOwner {
		return readName(r, &event.Owner)
	}
	_, err := r.Skip()
	return err
}

func readChanged(r *rawjson.Reader, name string, event *core.WatchEvent) (err error) {
	var text string

	switch name {
	case fieldWatched:
		return readName(r, &event.Watched)
	case fieldWatchedGVK:
		return r.Object(func(name string) error { return readGVK(r, name, event) })
	case "operation":
		text, err = r.Text()
		event.Operation = core.Operation(text)
	case "field":
		text, err = r.Text()
		event.Field = core.Field(text)
	case "generation":
		event.Generation, err = readInteger(r)
	default:
		return readOwner(r, name, event)
	}
	return err
}

func readInteger(r *rawjson.Reader) (int64, error) {
	raw, err := r.Skip()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("generation is %.40q, want an integer", raw)
	}
	return n, nil
}

func readName(r *rawjson.Reader, into *types.NamespacedName) error {
	return r.Object(func(name string) (err error) {
		switch name {
		case "namespace":
			into.Namespace, err = r.Text()
		case "name":
			into.Name, err = r.Text()
		default:
			_, err = r.Skip()
		}
		return err
	})
}

func readGVK(r *rawjson.Reader, name string, event *core.WatchEvent) (err error) {
	switch name {
	case "group":
		event.WatchedGVK.Group, err = r.Text()
	case "version":
		event.WatchedGVK.Version, err = r.Text()
	case "kind":
		event.WatchedGVK.Kind, err = r.Text()
	default:
		_, err = r.Skip()
	}
	return err
}

// Decode returns the batch that a body carries. Unknown fields are ignored, so that a contract can
// grow. The error wraps [ErrMalformed] and names the fault and the expectation.
func (v Version) Decode(body []byte) (core.Batch, error) {
	switch most := v.MaxBody(); {
	case most == 0:
		return core.Batch{}, unknown(string(v))
	case len(body) > most:
		return core.Batch{}, fmt.Errorf("%w: %d bytes, want at most %d", ErrMalformed, len(body), most)
	case v == V3:
		return decodeBatch(body)
	}
	event, err := decodeSingle(v, body)
	if err != nil {
		return core.Batch{}, err
	}
	return core.NewBatch(event), nil
}

func parseSource(source string) (core.RuntimeID, error) {
	escaped, ok := strings.CutPrefix(source, sourcePrefix)
	id, err := url.PathUnescape(escaped)
	if !ok || err != nil || id == "" {
		return "", fmt.Errorf("source is %.80q, want %s<runtime>", source, sourcePrefix)
	}
	return core.RuntimeID(id), nil
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

func readHeartbeat(data []byte) (*core.Heartbeat, error) {
	var beat heartbeatData
	if len(data) > 0 {
		if err := json.Unmarshal(data, &beat); err != nil {
			return nil, fmt.Errorf("heartbeat: %w", err)
		}
	}
	if err := beat.check(); err != nil {
		return nil, err
	}
	return beat.heartbeat(), nil
}

func (d *heartbeatData) check() error {
	if len(d.Dropped) > maxReasons || len(d.CAFingerprints) > maxFingerprints {
		return fmt.Errorf("%w: %d reasons and %d CA fingerprints, want at most %d and %d",
			ErrMalformed, len(d.Dropped), len(d.CAFingerprints), maxReasons, maxFingerprints)
	}
	texts := append([]string{
		d.Instance, d.Version, d.CertificateFingerprint, d.KeyMaterialError, string(d.Canary), d.ConfigHash,
		d.ConfigError,
	}, d.CAFingerprints...)
	for _, text := range slices.AppendSeq(texts, maps.Keys(d.Dropped)) {
		if len(text) > maxAttribute {
			return fmt.Errorf("%w: a heartbeat has a text of %d bytes, want at most %d",
				ErrMalformed, len(text), maxAttribute)
		}
	}
	return nil
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
		CertificateExpiry:      wireTime(d.CertificateExpiry),
		CAFingerprints:         d.CAFingerprints,
		KeyMaterialError:       d.KeyMaterialError,
		Canary:                 d.Canary,
		LastReview:             wireTime(d.LastReview),
		WebhookFailures:        d.WebhookFailures,
		ConfigHash:             d.ConfigHash,
		ConfigError:            d.ConfigError,
	}
}

// milliseconds turns a foreign number into a duration, without overflow.
func milliseconds(n int64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	var decoded bodyV1

	// In v2 an owner is an unknown field, which is ignored.
	var into any = &decoded.bodyV2
	if v.NeedsOwner() {
		into = &decoded
	}
	if err := json.Unmarshal(body, into); err != nil {
		return core.WatchEvent{}, fmt.Errorf("%w: want an event of contract %s in JSON: %w", ErrMalformed, v, err)
	}
	owner := types.NamespacedName(decoded.Owner)
	if err := check(v, owner, decoded.bodyV2); err != nil {
		return core.WatchEvent{}, err
	}
	return fromBody(owner, decoded.bodyV2), nil
}

func fromBody(owner types.NamespacedName, body bodyV2) core.WatchEvent {
	if body == resyncV2() {
		return core.WatchEvent{Resync: true, Owner: owner}
	}
	return core.WatchEvent{
		Owner:      owner,
		Watched:    types.NamespacedName(body.Watched),
		WatchedGVK: schema.GroupVersionKind(body.WatchedGVK),
	}
}
