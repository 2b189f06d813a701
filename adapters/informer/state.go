package informer

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

// state is the kept part of one state of an object. It is immutable.
type state struct {
	name            types.NamespacedName
	uid             types.UID
	resourceVersion string
	// counted is whether the object counts generations.
	counted bool
	// endOfList marks the bookmark after the initial objects of a watch.
	endOfList bool
	// labels are raw JSON, only kept for namespaces.
	labels string
	// digest is a JSON object that [core.DecodeObject] reads. It has a hash in place of each
	// compared part, so that two digests differ where a filter could find a difference.
	digest string
}

var _ runtime.Object = (*state)(nil)

// GetObjectKind implements [runtime.Object].
func (*state) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object].
func (s *state) DeepCopyObject() runtime.Object { return s }

// GetObjectMeta implements [metav1.ObjectMetaAccessor], with the fields that a reflector reads.
func (s *state) GetObjectMeta() metav1.Object {
	m := &metav1.ObjectMeta{
		Namespace: s.name.Namespace, Name: s.name.Name, UID: s.uid, ResourceVersion: s.resourceVersion,
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
	// labels keeps the labels apart, too.
	labels bool
}

// read makes a state of the JSON of an object. It keeps nothing of raw.
func (p parts) read(raw []byte) (*state, error) {
	d := digester{parts: p}
	r := rawjson.NewReader(raw)
	if err := r.Object(func(name []byte) error { return d.field(r, string(name)) }); err != nil {
		return nil, fmt.Errorf("object of the API server: %w", err)
	}
	d.state.digest = d.json()
	return &d.state, nil
}

// digester collects the members of a digest.
type digester struct {
	parts

	state      state
	generation string
	metadata   []byte // members of metadata, each with a comma before it
	spec       string
	status     string
	rest       hash.Hash // of an object without spec; nil: nothing yet
}

func (d *digester) field(r *rawjson.Reader, name string) error {
	if name == "metadata" {
		return r.Object(func(name []byte) error { return d.metadataField(r, string(name)) })
	}
	raw, err := r.Skip()
	switch {
	case err != nil || isNull(raw) || name == "apiVersion" || name == "kind":
	case name == "spec":
		d.spec = hashOf(raw)
	case name == "status":
		d.status = hashOf(raw)
		if !d.hasStatus {
			d.addRest(name, raw)
		}
	default:
		d.addRest(name, raw)
	}
	return err
}

func (d *digester) metadataField(r *rawjson.Reader, name string) (err error) {
	var raw []byte
	if raw, err = r.Skip(); err != nil || isNull(raw) {
		return err
	}
	switch name {
	case "name":
		d.state.name.Name, err = rawjson.NewReader(raw).Text()
	case "namespace":
		d.state.name.Namespace, err = rawjson.NewReader(raw).Text()
	case "uid":
		uid, textErr := rawjson.NewReader(raw).Text()
		d.state.uid, err = types.UID(uid), textErr
	case "resourceVersion":
		d.state.resourceVersion, err = rawjson.NewReader(raw).Text()
	case "managedFields":
	case "generation":
		d.generation = string(raw)
		d.state.counted = d.generation != "0"
		d.keep(name, raw)
	case "labels":
		if d.labels {
			d.state.labels = string(raw)
		}
		d.keep(name, raw)
	case "deletionTimestamp", "finalizers":
		d.keep(name, raw)
	case "annotations":
		err = d.annotations(raw)
	default:
		d.addRest("metadata."+name, raw)
	}
	return err
}

// annotations keeps the owner.
func (d *digester) annotations(raw []byte) error {
	d.addRest("metadata.annotations", raw)
	r := rawjson.NewReader(raw)
	return r.Object(func(name []byte) error {
		value, err := r.Skip()
		switch string(name) {
		case core.OwnerAnnotation:
			d.metadata = fmt.Appendf(d.metadata, `,"annotations":{%q:%s}`, core.OwnerAnnotation, value)
		case metav1.InitialEventsAnnotationKey:
			d.state.endOfList = string(value) == `"true"`
		}
		return err
	})
}

// keep copies a member of metadata into the digest.
func (d *digester) keep(name string, raw []byte) {
	d.metadata = fmt.Appendf(d.metadata, `,%q:%s`, name, raw)
}

// addRest adds a member to the content of an object without spec.
func (d *digester) addRest(name string, raw []byte) {
	if d.rest == nil {
		d.rest = sha256.New()
	}
	_, _ = fmt.Fprintf(d.rest, "%s %d ", name, len(raw)) // It never fails (package hash).
	_, _ = d.rest.Write(raw)
}

// json returns the digest.
func (d *digester) json() string {
	text := append([]byte(`{"metadata":{"uid":""`), d.metadata...)
	text = append(text, '}')
	switch {
	case d.parts.field == core.FieldStatus:
		text = member(text, "status", d.status)
	case d.parts.generation:
		text = member(text, "spec", "generation "+d.generation)
	case d.spec != "":
		text = member(text, "spec", d.spec)
	case d.rest != nil:
		text = member(text, "content", encode(d.rest.Sum(nil)))
	}
	return string(append(text, '}'))
}

// member adds a member with a text, unless the text is empty.
func member(text []byte, name, value string) []byte {
	if value == "" {
		return text
	}
	return append(text, `,"`+name+`":`+strconv.Quote(value)...)
}

// hashOf returns a hash of 128 bits.
func hashOf(raw []byte) string {
	h := sha256.Sum256(raw)
	return encode(h[:])
}

func encode(sum []byte) string {
	const length = 16
	return base64.RawStdEncoding.EncodeToString(sum[:length])
}

func isNull(raw []byte) bool { return string(raw) == "null" }
