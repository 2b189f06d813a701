package contract

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

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
	case TypeHeartbeat:
		if c.heartbeat, err = readHeartbeat(c.data); err == nil {
			c.heartbeat.ID, c.heartbeat.Time = c.event.ID, c.event.Time
		}
	case TypeResync:
		c.event.Resync = true
		err = c.readObject(r, func(name string) error { return readOwner(r, name, &c.event.WatchEvent) })
	case TypeChanged:
		err = c.readObject(r, func(name string) error { return readChanged(r, name, &c.event.WatchEvent) })
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
