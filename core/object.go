package core

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// Object is one state of a Kubernetes object. Only the parts that filters need are parsed; the rest
// stays raw JSON. An Object is immutable and safe for concurrent use. It retains the bytes from
// which it was parsed.
type Object struct {
	// GVK is the kind of the object, from its apiVersion and kind.
	GVK schema.GroupVersionKind
	// Name identifies the object. Namespace is empty for a cluster-scoped object.
	Name types.NamespacedName
	// Generation is metadata.generation, or 0 for kinds without it.
	Generation int64
	// Deleting reports whether metadata.deletionTimestamp is set.
	Deleting bool
	// Finalizers is the number of finalizers of the object.
	Finalizers int

	apiVersion, kind string
	annotations      []byte
	labels           []byte
	version          []byte     // metadata.resourceVersion
	fields           []rawField // top level, without apiVersion, kind and metadata
	metadata         []rawField // metadata, without identity and bookkeeping
}

// rawField is a member of the JSON of an object. Its slices are parts of that JSON, but a name with
// escapes is a copy.
type rawField struct{ name, raw []byte }

// maxMembers bounds the members of a foreign object at its top level, and those in its metadata.
// Objects of the API have fewer than 20 at either place.
const maxMembers = 256

// NewObject makes an object from decoded JSON, such as the content of an unstructured object. The
// object keeps no reference to content. If content is nil, NewObject returns a nil object. The
// error is permanent, with the reason invalid_object.
func NewObject(content map[string]any) (*Object, error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidObject, err)
	}
	return DecodeObject(raw)
}

// DecodeObject reads one object from JSON, in one pass. For a JSON null it returns a nil object,
// because CREATE has no old object and DELETE no new object. The object keeps raw, which must not
// be changed afterwards. The error is permanent, has the reason invalid_object and names the
// position. It is an error if the top level or metadata has more than 256 members.
func DecodeObject(raw []byte) (*Object, error) {
	r := rawjson.NewReader(raw)
	o, err := readObject(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidObject, err)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalidObject, err)
	}
	return o, nil
}

// DecodeObjectPrefix decodes the object at the beginning of raw, like [DecodeObject], and also
// returns the number of bytes read. Use it for an object inside a longer text, such as an admission
// review.
func DecodeObjectPrefix(raw []byte) (o *Object, size int, err error) {
	r := rawjson.NewReader(raw)
	o, err = readObject(r)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errInvalidObject, err)
	}
	return o, r.Offset(), nil
}

func readObject(r *rawjson.Reader) (*Object, error) {
	if r.Null() {
		return nil, nil
	}

	o := &Object{fields: make([]rawField, 0, 4)} // spec, status and few others.
	if err := r.Object(func(name []byte) error { return o.readField(r, name) }); err != nil {
		return nil, err
	}

	o.GVK = schema.FromAPIVersionAndKind(o.apiVersion, o.kind)
	return o, nil
}

func (o *Object) readField(r *rawjson.Reader, name []byte) error {
	switch string(name) {
	case "apiVersion":
		return readText(r, &o.apiVersion)
	case "kind":
		return readText(r, &o.kind)
	case "metadata":
		return r.Object(func(name []byte) error { return o.readMetadata(r, name) })
	default:
		return keep(r, name, &o.fields)
	}
}

func (o *Object) readMetadata(r *rawjson.Reader, name []byte) error {
	switch string(name) {
	case "name":
		return readText(r, &o.Name.Name)
	case "namespace":
		return readText(r, &o.Name.Namespace)
	case "generation":
		return readGeneration(r, &o.Generation)
	case "managedFields":
		_, err := r.Skip()
		return err
	case "resourceVersion":
		raw, err := r.Skip()
		o.version = raw
		return err
	default:
		return o.readKeptMetadata(r, name)
	}
}

// readKeptMetadata keeps the bytes of a member for comparisons, and decodes the few members that
// filters need.
func (o *Object) readKeptMetadata(r *rawjson.Reader, name []byte) error {
	if err := keep(r, name, &o.metadata); err != nil {
		return err
	}

	raw := o.metadata[len(o.metadata)-1].raw
	switch string(name) {
	case "labels":
		o.labels = raw
	case "annotations":
		o.annotations = raw
	case "deletionTimestamp":
		o.Deleting = !isNull(raw)
	case "finalizers":
		o.Finalizers = rawjson.Len(raw)
	}
	return nil
}

// keep bounds its members: each takes more memory than the bytes that it is read from.
func keep(r *rawjson.Reader, name []byte, into *[]rawField) error {
	if len(*into) == maxMembers {
		return fmt.Errorf("more than %d members at the top level or in metadata", maxMembers)
	}
	raw, err := r.Skip()
	*into = append(*into, rawField{name, raw})
	return err
}

// readText leaves the string as it is when the value is null, as encoding/json does.
func readText(r *rawjson.Reader, into *string) (err error) {
	if r.Null() {
		return nil
	}
	*into, err = r.Text()
	return err
}

func readGeneration(r *rawjson.Reader, into *int64) error {
	raw, err := r.Skip()
	if err != nil || isNull(raw) {
		return err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return fmt.Errorf("metadata.generation: want an integer of 64 bits, have %s", shorten(string(raw)))
	}

	*into = n
	return nil
}

// Field returns the raw JSON of a top-level field such as spec or status, or nil if the field is
// absent or null. It does not return apiVersion, kind or metadata. The caller must not change the
// bytes.
func (o *Object) Field(name string) []byte {
	if o == nil {
		return nil
	}
	return find(o.fields, name)
}

// Annotation returns the value of an annotation and whether the annotation is set.
func (o *Object) Annotation(key string) (value string, ok bool) {
	if o == nil {
		return "", false
	}
	return lookup(o.annotations, key)
}

// Label returns the value of a label and whether the label is set.
func (o *Object) Label(key string) (value string, ok bool) {
	if o == nil {
		return "", false
	}
	return lookup(o.labels, key)
}

// lookup returns false for a value that is not a map, and for a member that is not a string.
func lookup(raw []byte, key string) (value string, ok bool) {
	if raw == nil { // Most objects have no annotations or no labels, and an error costs more than a search.
		return "", false
	}
	r := rawjson.NewReader(raw)
	_ = r.Object(func(name []byte) error {
		v, err := r.Skip()
		if err == nil && string(name) == key {
			value, err = rawjson.NewReader(v).Text()
			ok = err == nil
		}
		return err
	})
	return value, ok
}

// find takes the last field of that name, as encoding/json does, and nil for null.
func find(fields []rawField, name string) []byte {
	for _, f := range slices.Backward(fields) {
		if string(f.name) == name {
			return orNil(f.raw)
		}
	}
	return nil
}

func orNil(raw []byte) []byte {
	if isNull(raw) {
		return nil
	}
	return raw
}

func isNull(raw []byte) bool { return string(raw) == "null" }
