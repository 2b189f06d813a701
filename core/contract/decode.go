package contract

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// received is a CloudEvent as it is read. The order of its members is free: data is interpreted
// when the type is known.
type received struct {
	event       core.Numbered
	heartbeat   *core.Heartbeat
	runtime     core.RuntimeID
	epoch       string
	specVersion string
	source      string
	kind        string
	sequence    string
	time        string
	data        []byte
}

// decoder reads one body. Elements of a batch share most of their texts.
type decoder struct {
	r     *rawjson.Reader
	size  int // of the body.
	batch core.Batch
	n     int      // elements before the present element.
	last  received // the newest of them.
}

// decodeBatch decodes a body of contract v3. Its errors are permanent.
func decodeBatch(body []byte) (core.Batch, error) {
	d := &decoder{r: rawjson.NewReader(body), size: len(body)}
	d.last.event.Operation = core.OperationUpdate
	d.last.event.Field = core.FieldSpec // Of most first events.
	err := d.readAll()
	switch {
	case !utf8.Valid(body):
		return core.Batch{}, fmt.Errorf("%w: the body is not UTF-8", errMalformed)
	case err != nil:
		return core.Batch{}, fmt.Errorf("%w: want a batch of CloudEvents in JSON: %w", errMalformed, err)
	case d.n == 0:
		return core.Batch{}, fmt.Errorf("%w: no events, want 1 to %d", errMalformed, maxBatchEvents)
	default:
		return d.batch, nil
	}
}

func (d *decoder) readAll() error {
	if err := d.r.Array(d.readElement); err != nil {
		return err
	}
	return d.r.End()
}

func (d *decoder) readElement() error {
	start := d.r.Offset()
	if err := d.readNext(); err != nil {
		return fmt.Errorf("event %d of the batch: %w", d.n, err)
	}

	if d.n == 0 { // The others are as large, mostly.
		size := d.r.Offset() - start
		d.batch.Events = slices.Grow(d.batch.Events, min((d.size-d.r.Offset())/size, maxBatchEvents))
	}

	d.n++
	return nil
}

// readNext reads one element. The heartbeat must be the last element, because its numbers include
// the numbers of the batch.
func (d *decoder) readNext() error {
	switch {
	case d.n == maxBatchEvents:
		return fmt.Errorf("%w: want at most %d events", errMalformed, maxBatchEvents)
	case d.batch.Heartbeat != nil:
		return fmt.Errorf("%w: want a heartbeat as the last element only", errMalformed)
	}

	var c received
	if err := d.r.Object(func(name []byte) error { return c.readAttribute(d.r, name, &d.last) }); err != nil {
		return err
	}
	if err := c.interpret(&d.last); err != nil {
		return err
	}

	d.last = c
	return c.addTo(&d.batch, d.n)
}

// addTo adds the element to the batch. All elements must claim the source and the epoch of the
// first one, because a batch has one sender.
func (c *received) addTo(batch *core.Batch, n int) error {
	if n == 0 {
		batch.Source = c.runtime
		batch.Epoch = c.epoch
	}

	switch {
	case batch.Source != c.runtime || batch.Epoch != c.epoch:
		return fmt.Errorf("%w: source or epoch differs from the first event", errMalformed)
	case c.heartbeat != nil:
		batch.Heartbeat = c.heartbeat
		return nil
	}

	batch.Events = append(batch.Events, c.event)
	return checkEvent(&c.event)
}

// readAttribute shares the texts that are equal to the texts of the last element, and skips unknown
// attributes: a contract can grow.
func (c *received) readAttribute(r *rawjson.Reader, name []byte, last *received) (err error) {
	switch string(name) {
	case "specversion":
		c.specVersion, err = r.TextLike(specVersion)
	case "id":
		c.event.ID, err = r.Text()
	case "source":
		c.source, err = r.TextLike(last.source)
	case "type":
		c.kind, err = r.TextLike(typeChanged)
	case "time":
		c.time, err = r.TextLike(last.time)
	case "epoch":
		c.epoch, err = r.TextLike(last.epoch)
	case "sequence":
		c.sequence, err = r.Text()
	case "traceparent":
		c.event.TraceParent, err = r.TextLike(last.event.TraceParent)
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
	raw, err := r.Skip() // It may be longer than other texts.
	if err != nil {
		return nil, err
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("data_base64: %w", err)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("data_base64: %w", err)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("data_base64: want UTF-8")
	}
	return data, nil
}

// interpret turns the attributes into values when all are read, because data depends on the type.
func (c *received) interpret(last *received) (err error) {
	if err := c.checkAttributes(); err != nil {
		return err
	}
	c.runtime, err = parseSource(c.source)
	if err != nil {
		return err
	}
	c.event.Sequence, err = parseSequence(c.sequence)
	if err != nil {
		return err
	}
	c.event.Time, err = parseTime(c.time)
	if err != nil {
		return err
	}
	return c.readData(&last.event.WatchEvent)
}

func (c *received) checkAttributes() error {
	for _, required := range [][2]string{{"id", c.event.ID}, {"source", c.source}, {"type", c.kind}} {
		if required[1] == "" {
			return fmt.Errorf("%w: attribute %s is missing", errMalformed, required[0])
		}
	}

	if c.specVersion != specVersion {
		return fmt.Errorf("%w: specversion is %.16q, want %q", errMalformed, c.specVersion, specVersion)
	}
	return cmp.Or(
		checkAttribute("id", c.event.ID), checkAttribute("source", c.source), checkAttribute("type", c.kind),
		checkAttribute("epoch", c.epoch), checkAttribute("traceparent", c.event.TraceParent))
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

func (c *received) readData(last *core.WatchEvent) error {
	var err error
	d := dataReader{rawjson.NewReader(c.data), &c.event.WatchEvent, last}
	switch c.kind {
	case typeHeartbeat:
		err = c.readHeartbeat()
	case typeResync:
		c.event.Resync = true
		err = d.readObject(c.data, d.readOwner)
	case typeChanged:
		err = d.readObject(c.data, d.readChanged)
	default:
		return fmt.Errorf("type is %.80q, want one of %v", c.kind, []string{typeChanged, typeResync, typeHeartbeat})
	}

	if err != nil {
		return fmt.Errorf("data of type %s: %w", c.kind, err)
	}
	return nil
}

// dataReader reads the data of an event. It shares texts with the last event where they are equal.
type dataReader struct {
	*rawjson.Reader

	event, last *core.WatchEvent
}

// readObject reads data, which may be absent.
func (d *dataReader) readObject(data []byte, member func(name []byte) error) error {
	if len(data) == 0 {
		return nil
	}
	if err := d.Object(member); err != nil {
		return err
	}
	return d.End()
}

func (d *dataReader) readOwner(name []byte) error {
	if string(name) == fieldOwner {
		return d.readName(&d.event.Owner, &d.last.Owner)
	}
	_, err := d.Skip()
	return err
}

func (d *dataReader) readChanged(name []byte) (err error) {
	var text string
	switch string(name) {
	case fieldWatched:
		return d.readName(&d.event.Watched, &d.last.Watched)
	case fieldWatchedGVK:
		return d.Object(d.readGVK)
	case "operation":
		text, err = d.TextLike(string(d.last.Operation))
		d.event.Operation = core.Operation(text)
	case "field":
		text, err = d.TextLike(string(d.last.Field))
		d.event.Field = core.Field(text)
	case "generation":
		d.event.Generation, err = d.readInteger(name)
	case "uid":
		text, err = d.Text()
		d.event.UID = types.UID(text)
	case "base":
		d.event.Base, err = d.readInteger(name)
	default:
		return d.readOwner(name)
	}

	return err
}

func (d *dataReader) readInteger(name []byte) (int64, error) {
	raw, err := d.Skip()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %.40q, want an integer", name, raw)
	}
	return n, nil
}

func (d *dataReader) readName(into, last *types.NamespacedName) error {
	return d.Object(func(name []byte) (err error) {
		switch string(name) {
		case "namespace":
			into.Namespace, err = d.TextLike(last.Namespace)
		case "name":
			into.Name, err = d.TextLike(last.Name)
		default:
			_, err = d.Skip()
		}
		return err
	})
}

func (d *dataReader) readGVK(name []byte) (err error) {
	kind := &d.event.WatchedGVK
	last := &d.last.WatchedGVK
	switch string(name) {
	case "group":
		kind.Group, err = d.TextLike(last.Group)
	case "version":
		kind.Version, err = d.TextLike(last.Version)
	case "kind":
		kind.Kind, err = d.TextLike(last.Kind)
	default:
		_, err = d.Skip()
	}
	return err
}

// Decode returns the batch that body carries. Unknown fields are ignored, so that a contract can be
// extended. The error is permanent, has the reason malformed, and names the fault and the expected
// form.
func (v Version) Decode(body []byte) (core.Batch, error) {
	most := v.MaxBody()
	switch {
	case most == 0:
		return core.Batch{}, unknown(string(v))
	case len(body) > most:
		return core.Batch{}, fmt.Errorf("%w: the body has %d bytes, want at most %d", errMalformed, len(body), most)
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

func (c *received) readHeartbeat() error {
	heartbeat, err := decodeHeartbeat(c.data)
	if err != nil {
		return err
	}

	heartbeat.ID = c.event.ID
	heartbeat.Time = c.event.Time
	c.heartbeat = heartbeat
	return nil
}

// decodeHeartbeat decodes the data of a heartbeat. The numbers are foreign, so they are bounded.
func decodeHeartbeat(data []byte) (*core.Heartbeat, error) {
	heartbeat := &core.Heartbeat{}
	if len(data) > 0 {
		if err := json.Unmarshal(data, (*heartbeatData)(heartbeat)); err != nil {
			return nil, fmt.Errorf("heartbeat: %w", err)
		}
	}

	// heartbeatData has read these as numbers of milliseconds.
	heartbeat.Interval = milliseconds(int64(heartbeat.Interval))
	heartbeat.OldestPending = milliseconds(int64(heartbeat.OldestPending))
	for _, at := range timesOf(heartbeat) {
		*at = wireTime(*at)
	}
	return heartbeat, checkHeartbeat(heartbeat)
}

// checkHeartbeat bounds a heartbeat, because a listener keeps it. A sender cuts to the same bounds.
func checkHeartbeat(heartbeat *core.Heartbeat) error {
	if len(heartbeat.Dropped) > maxReasons || len(heartbeat.CAFingerprints) > maxFingerprints {
		return fmt.Errorf("%w: %d reasons and %d CA fingerprints, want at most %d and %d",
			errMalformed, len(heartbeat.Dropped), len(heartbeat.CAFingerprints), maxReasons, maxFingerprints)
	}

	texts := slices.Clone(heartbeat.CAFingerprints)
	for reason := range heartbeat.Dropped {
		texts = append(texts, string(reason))
	}

	for _, text := range textsOf(heartbeat) {
		texts = append(texts, *text)
	}

	for _, text := range texts {
		if len(text) > maxAttribute {
			return fmt.Errorf("%w: a text field of the heartbeat has %d bytes, want at most %d",
				errMalformed, len(text), maxAttribute)
		}
	}

	return nil
}

// milliseconds turns a foreign number into a duration, without overflow.
func milliseconds(n int64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}
