package informer

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"strconv"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// state is the part of an object that is read. It is immutable.
type state struct {
	name            types.NamespacedName
	resourceVersion string
	// endOfList marks the bookmark after the initial objects of a watch.
	endOfList bool
	// labels are the labels of a namespace by which a watch selects.
	labels labels.Set
	digest *digest
}

var _ runtime.Object = (*state)(nil)

func (*state) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (s *state) DeepCopyObject() runtime.Object { return s }

// GetObjectMeta implements [metav1.ObjectMetaAccessor], with the fields that a reflector reads.
func (s *state) GetObjectMeta() metav1.Object {
	m := &metav1.ObjectMeta{
		Namespace: s.name.Namespace, Name: s.name.Name, ResourceVersion: s.resourceVersion,
	}
	if s.endOfList {
		m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return m
}

// parts are the parts of an object in which two digests may differ.
type parts struct {
	field core.Field
	// generation stands for the spec: the objects are metadata only.
	generation bool
	// hasStatus leaves the status out of the content of an object without spec, because it has a
	// subresource of its own.
	hasStatus bool
	// labels are the keys of the labels that are kept of a namespace, nil for other objects. Of a
	// namespace, only these and the name are kept.
	labels map[string]bool
	// owner is the annotation that names the owner.
	owner string
}

// parseObject makes a state of the JSON of an object. It keeps nothing of raw.
func (p parts) parseObject(raw []byte) (*state, error) {
	d := digester{parts: p, state: state{digest: &digest{}}}
	r := rawjson.NewReader(raw)
	if err := r.Object(func(name []byte) error { return d.readField(r, string(name)) }); err != nil {
		return nil, fmt.Errorf("object of the API server: %w", err)
	}

	d.concludeState()
	s := d.state // A copy, so that no list keeps the buffers of the digester.
	return &s, nil
}

// digester makes the state of one object while it reads the JSON of that object.
type digester struct {
	parts

	state        state
	metadata     []byte // as that of a digest
	spec, status *sum
	rest         hash.Hash // of an object without spec; nil: nothing yet
}

func (d *digester) readField(r *rawjson.Reader, name string) error {
	if name == "metadata" {
		return r.Object(func(name []byte) error { return d.metadataField(r, string(name)) })
	}

	raw, err := r.Skip()
	if err != nil || isNull(raw) {
		return err
	}

	switch name {
	case "apiVersion", "kind": // The watch has them.
	case "spec":
		d.spec = new(sumOf(raw))
	case "status":
		d.status = new(sumOf(raw))
		if !d.hasStatus { // The status is ordinary content of a kind without a status subresource.
			d.addRest(name, raw)
		}
	default:
		d.addRest(name, raw)
	}

	return nil
}

func (d *digester) metadataField(r *rawjson.Reader, name string) error {
	raw, err := r.Skip()
	if err != nil || isNull(raw) {
		return err
	}

	switch name {
	case "name":
		d.state.name.Name, err = rawjson.NewReader(raw).Text()
	case "namespace":
		var namespace string
		namespace, err = rawjson.NewReader(raw).Text()
		d.state.name.Namespace = unique.Make(namespace).Value() // Many objects share the memory of one text.
	case "uid":
		d.state.digest.uid = sumOf(raw)
	case "resourceVersion":
		d.state.resourceVersion, err = rawjson.NewReader(raw).Text()
	case "managedFields": // Each write changes them.
	case "generation":
		d.state.digest.generation, err = strconv.ParseInt(string(raw), 10, 64)
	case "labels", "deletionTimestamp", "finalizers":
		if d.labels == nil {
			d.storePart(name, raw)
		} else if name == "labels" {
			err = d.keepLabels(raw)
		}
	case "annotations":
		err = d.readAnnotations(raw)
	default:
		d.addRest("metadata."+name, raw)
	}

	return err
}

// keepLabels keeps the labels that a watch selects namespaces by. A user with the right to create
// namespaces chooses all others, and an API server takes more than 1 MB of them.
func (d *digester) keepLabels(raw []byte) error {
	r := rawjson.NewReader(raw)
	return r.Object(func(name []byte) error {
		if !d.labels[string(name)] {
			_, err := r.Skip()
			return err
		}

		value, err := r.Text()
		if d.state.labels == nil {
			d.state.labels = make(labels.Set)
		}

		d.state.labels[string(name)] = value
		return err
	})
}

func (d *digester) readAnnotations(raw []byte) error {
	d.addRest("metadata.annotations", raw)
	r := rawjson.NewReader(raw)
	return r.Object(func(name []byte) error {
		value, err := r.Skip()
		switch string(name) {
		case d.owner:
			if len(value) > mostKept { // No owner has such a long name.
				value = strconv.AppendQuote(nil, "//"+hashOf(value))
			}
			d.metadata = fmt.Appendf(d.metadata, `,"annotations":{%q:%s}`, d.owner, value)
		case metav1.InitialEventsAnnotationKey:
			d.state.endOfList = string(value) == `"true"`
		}
		return err
	})
}

// mostKept bounds the labels, the finalizers and the owner that are kept of an object, in bytes
// each. Otherwise one user with the right to write watched objects could fill the memory of the
// agent. A hash replaces a larger part, so that two digests still differ.
const mostKept = 4 << 10

func (d *digester) storePart(name string, raw []byte) {
	switch {
	case len(raw) <= mostKept:
	case name == "labels":
		raw = fmt.Appendf(nil, `{"":%q}`, hashOf(raw))
	default:
		raw = fmt.Appendf(nil, `[%q]`, hashOf(raw))
	}
	d.metadata = fmt.Appendf(d.metadata, `,%q:%s`, name, raw)
}

func (d *digester) addRest(name string, raw []byte) {
	if d.rest == nil {
		d.rest = sha256.New()
	}

	_, _ = fmt.Fprintf(d.rest, "%s %d ", name, len(raw)) // It never fails (package hash).
	_, _ = d.rest.Write(raw)
}

// concludeState sets the digest after the last field was read.
func (d *digester) concludeState() {
	d.state.digest.metadata = unique.Make(string(d.metadata))
	switch {
	case d.field == core.FieldStatus:
		d.setContent("status", d.status)
	case d.generation:
		d.setContent("spec", new(sumOf(strconv.AppendInt(nil, d.state.digest.generation, 10))))
	case d.spec != nil:
		d.setContent("spec", d.spec)
	case d.rest != nil:
		d.setContent("content", new(sum(d.rest.Sum(nil))))
	}
}

// setContent sets the part that two digests compare, unless the object has none.
func (d *digester) setContent(member string, content *sum) {
	if content == nil {
		return
	}

	d.state.digest.member = member
	d.state.digest.content = *content
}

func isNull(raw []byte) bool { return string(raw) == "null" }

type sum [16]byte

func hashOf(raw []byte) string {
	s := sumOf(raw)
	return base64.RawStdEncoding.EncodeToString(s[:])
}

func sumOf(raw []byte) sum {
	h := sha256.Sum256(raw)
	return sum(h[:])
}

// digest is the kept part of one state of an object. Two digests differ where a filter could find a
// difference. It is immutable once it is kept.
type digest struct {
	// uid and content are hashes. The content is the compared part.
	uid, content sum
	// generation is 0 if the object does not count generations.
	generation int64
	// member is the name of the compared part, "" if the object has none.
	member string
	// metadata contains the other members of metadata as JSON, each with a comma before it.
	metadata unique.Handle[string]
}

// asJSON returns a JSON object that [core.DecodeObject] reads, with hashes in place of the content.
func (d *digest) asJSON() []byte {
	text := []byte(`{"metadata":{"uid":""`)
	if d.generation != 0 {
		text = strconv.AppendInt(append(text, `,"generation":`...), d.generation, 10)
	}

	text = append(append(text, d.metadata.Value()...), '}')
	if d.member != "" {
		text = append(text, `,"`+d.member+`":"`+base64.RawStdEncoding.EncodeToString(d.content[:])+`"`...)
	}

	return append(text, '}')
}
