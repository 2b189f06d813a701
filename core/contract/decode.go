package contract

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/rawjson"
)

// received is a CloudEvent as it comes in. Its order is free, so that data is read when the type is known.
type received struct {
	event       core.WatchEvent
	specVersion string
	source      string
	kind        string
	sequence    string
	time        string
	data        []byte
}

func decodeBatch(body []byte) ([]core.WatchEvent, error) {
	var events []core.WatchEvent

	r := rawjson.NewReader(body)

	err := r.Array(func() error {
		if len(events) == maxBatchEvents {
			return fmt.Errorf("%w: want at most %d events", ErrMalformed, maxBatchEvents)
		}

		event, err := readEvent(r)
		if err != nil {
			return fmt.Errorf("event %d of the batch: %w", len(events), err)
		}

		events = append(events, event)

		return nil
	})
	if err == nil {
		err = r.End()
	}

	if err != nil {
		return nil, fmt.Errorf("%w: want a batch of CloudEvents in JSON: %w", ErrMalformed, err)
	}

	if len(events) == 0 {
		return nil, fmt.Errorf("%w: no events, want 1 to %d", ErrMalformed, maxBatchEvents)
	}

	return events, nil
}

func readEvent(r *rawjson.Reader) (core.WatchEvent, error) {
	var c received

	if err := r.Object(func(name string) error { return c.readAttribute(r, name) }); err != nil {
		return core.WatchEvent{}, err //nolint:wrapcheck // The caller wraps it.
	}

	if err := c.interpret(); err != nil {
		return core.WatchEvent{}, err
	}

	return c.event, checkBatched(&c.event)
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
		c.event.Epoch, err = r.Text()
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

	return err //nolint:wrapcheck // The caller wraps it.
}

func readBase64(r *rawjson.Reader) ([]byte, error) {
	text, err := r.Text()
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller wraps it.
	}

	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("data_base64: %w", err)
	}

	return data, nil
}

// interpret turns the attributes into an event.
func (c *received) interpret() (err error) {
	for _, attribute := range []struct {
		name, value string
		optional    bool
	}{
		{"id", c.event.ID, false},
		{"source", c.source, false},
		{"type", c.kind, false},
		{"epoch", c.event.Epoch, true},
		{"traceparent", c.event.TraceParent, true},
	} {
		if attribute.value == "" && !attribute.optional {
			return fmt.Errorf("attribute %s is missing", attribute.name)
		}

		if len(attribute.value) > maxAttribute {
			return fmt.Errorf("attribute %s has %d bytes, want at most %d", attribute.name, len(attribute.value), maxAttribute)
		}
	}

	if c.specVersion != specVersion {
		return fmt.Errorf("specversion is %.16q, want %q", c.specVersion, specVersion)
	}

	if c.event.Source, err = parseSource(c.source); err != nil {
		return err
	}

	if c.event.Sequence, err = parseSequence(c.sequence); err != nil {
		return err
	}

	if c.event.Time, err = parseTime(c.time); err != nil {
		return err
	}

	return c.readData()
}

func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}

	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("time is %.40q, want a timestamp (RFC 3339)", text)
	}

	return at, nil
}

func (c *received) readData() error {
	var err error

	r := rawjson.NewReader(c.data)

	switch c.kind {
	case TypeHeartbeat:
		c.event.Kind = core.KindHeartbeat
		c.event.Heartbeat, err = readHeartbeat(c.data)
	case TypeResync:
		c.event.Kind = core.KindResync
		err = c.readObject(r, func(name string) error { return readOwner(r, name, &c.event) })
	case TypeChanged:
		err = c.readObject(r, func(name string) error { return readChanged(r, name, &c.event) })
	default:
		return fmt.Errorf("type is %.80q, want one of %v", c.kind, []string{TypeChanged, TypeResync, TypeHeartbeat})
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
		return err //nolint:wrapcheck // The caller wraps it.
	}

	return r.End() //nolint:wrapcheck // The caller wraps it.
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

	return err //nolint:wrapcheck // The caller wraps it.
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

	return err //nolint:wrapcheck // The caller wraps it.
}

func readInteger(r *rawjson.Reader) (int64, error) {
	raw, err := r.Skip()
	if err != nil {
		return 0, err //nolint:wrapcheck // The caller wraps it.
	}

	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("generation is %.40q, want an integer", raw)
	}

	return n, nil
}

func readName(r *rawjson.Reader, into *types.NamespacedName) error {
	return r.Object(func(name string) (err error) { //nolint:wrapcheck // The caller wraps it.
		switch name {
		case "namespace":
			into.Namespace, err = r.Text()
		case "name":
			into.Name, err = r.Text()
		default:
			_, err = r.Skip()
		}

		return err //nolint:wrapcheck // The caller wraps it.
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

	return err //nolint:wrapcheck // The caller wraps it.
}

func readHeartbeat(data []byte) (*core.Heartbeat, error) {
	var beat heartbeatData

	if len(data) > 0 {
		if err := json.Unmarshal(data, &beat); err != nil {
			return nil, err //nolint:wrapcheck // The caller wraps it.
		}
	}

	return beat.heartbeat(), nil
}
