package admission

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

const (
	reviewKind       = "AdmissionReview"
	reviewAPIVersion = "admission.k8s.io/v1"
)

var (
	// errMalformedReview is answered with 400. Its text names the field.
	errMalformedReview = errors.New("malformed AdmissionReview")
	// errUnsupportedVersion is answered with 400. Its text names the setting of the webhook.
	errUnsupportedVersion = errors.New("unsupported version of AdmissionReview")
)

// review refers to slices of the body. Its strings are copies.
type review struct {
	apiVersion, kind string
	request          *request
}

// request is the part of a review that decides about an event. Its objects refer to the body.
type request struct {
	uid string
	// gvk is the kind of object and oldObject.
	gvk schema.GroupVersionKind
	// resource is the JSON of the resource that was written, which only a subresource needs.
	resource []byte
	// name is the name in the request. On CREATE with generateName it is empty.
	name        types.NamespacedName
	operation   core.Operation
	subresource string
	dryRun      bool
	// traceParent is the trace context of the call, "" if there is none.
	traceParent string
	// object and oldObject are nil if they are absent or null.
	object    *core.Object
	oldObject *core.Object
}

// readReview reads body once. Its error wraps errMalformedReview or errUnsupportedVersion.
func readReview(body []byte) (*request, error) {
	var v review
	r := rawjson.NewReader(body)
	if err := r.Object(func(name []byte) error { return v.readField(r, name) }); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformedReview, err)
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformedReview, err)
	}

	return v.request, v.validate()
}

// uidOf returns the uid of a review from its first bytes, or "" if the uid is not in them.
func uidOf(beginning []byte) string {
	var v review
	r := rawjson.NewReader(beginning)
	_ = r.Object(func(name []byte) error { return v.readField(r, name) }) // It ends where the beginning does.

	if v.apiVersion != reviewAPIVersion || v.kind != reviewKind || v.request == nil {
		return ""
	}

	return v.request.uid
}

func (v *review) readField(r *rawjson.Reader, name []byte) (err error) {
	switch string(name) {
	case "apiVersion":
		v.apiVersion, err = r.Text()
	case "kind":
		v.kind, err = r.Text()
	case "request":
		v.request = &request{}
		err = r.Object(func(name []byte) error { return v.request.readField(r, name) })
	default:
		_, err = r.Skip()
	}
	return err
}

func (q *request) readField(r *rawjson.Reader, name []byte) (err error) {
	switch string(name) {
	case "uid":
		q.uid, err = r.Text()
	case "kind":
		err = r.Object(func(name []byte) error { return readKind(r, name, &q.gvk) })
	case "resource":
		q.resource, err = r.Skip()
	case "subResource":
		q.subresource, err = r.Text()
	case "name":
		q.name.Name, err = r.Text()
	case "namespace":
		q.name.Namespace, err = r.Text()
	case "operation":
		var text string
		text, err = r.Text()
		q.operation = core.Operation(text)
	case "object":
		q.object, err = readObject(r, string(name))
	case "oldObject":
		q.oldObject, err = readObject(r, string(name))
	case "dryRun":
		q.dryRun, err = r.Bool()
	default:
		_, err = r.Skip()
	}
	return err
}

// readKind reads one field of a GroupVersionKind, or the group or version of another object.
func readKind(r *rawjson.Reader, name []byte, gvk *schema.GroupVersionKind) (err error) {
	switch string(name) {
	case "group":
		gvk.Group, err = r.Text()
	case "version":
		gvk.Version, err = r.Text()
	case "kind":
		gvk.Kind, err = r.Text()
	default:
		_, err = r.Skip()
	}
	return err
}

// readObject decodes an object in place, without a copy of its bytes. null is not an object.
func readObject(r *rawjson.Reader, field string) (o *core.Object, err error) {
	err = r.Decode(func(rest []byte) (size int, err error) {
		o, size, err = core.DecodeObjectPrefix(rest)
		return size, err
	})
	if err != nil {
		return nil, fmt.Errorf("request.%s: %w", field, err)
	}
	return o, nil
}

func (v *review) validate() error {
	switch {
	case v.kind != reviewKind:
		return fmt.Errorf("%w: want kind %s, have %.40q", errMalformedReview, reviewKind, v.kind)
	case v.apiVersion != reviewAPIVersion:
		return fmt.Errorf(`%w: want %s, have %.40q; set admissionReviewVersions of the webhook to ["v1"]`,
			errUnsupportedVersion, reviewAPIVersion, v.apiVersion)
	case v.request == nil:
		return fmt.Errorf("%w: want a request, have none", errMalformedReview)
	case v.request.uid == "":
		return fmt.Errorf("%w: want a request.uid, have none", errMalformedReview)
	}

	switch v.request.operation {
	case core.OperationCreate, core.OperationUpdate, core.OperationDelete, core.OperationConnect:
		return nil
	default:
		return fmt.Errorf("%w: want request.operation CREATE, UPDATE, DELETE or CONNECT, have %.40q",
			errMalformedReview, string(v.request.operation))
	}
}

// watchedGVK returns the kind of the object that the event names. The object of a subresource may
// have another kind, such as Scale. The parent is the kind of the watch, "" if it is not known.
func (q *request) watchedGVK(parent string) schema.GroupVersionKind {
	if parent == "" || !isForeign(q.subresource) {
		return q.gvk
	}

	var gvk schema.GroupVersionKind
	r := rawjson.NewReader(q.resource)
	if err := r.Object(func(name []byte) error { return readKind(r, name, &gvk) }); err != nil {
		return q.gvk
	}

	gvk.Kind = parent
	return gvk
}

// namesNoObject reports whether neither the request nor its objects have a name.
func (q *request) namesNoObject() bool {
	isNamed := func(o *core.Object) bool { return o != nil && o.Name.Name != "" }
	return q.name.Name == "" && !isNamed(q.object) && !isNamed(q.oldObject)
}

// newChange returns the change for a filter. It refers to the body. For parent see watchedGVK.
func (q *request) newChange(parent string) *core.Change {
	return &core.Change{
		Operation:   q.operation,
		Subresource: q.subresource,
		DryRun:      q.dryRun,
		Old:         q.oldObject,
		New:         q.object,
		Name:        q.name,
		GVK:         q.watchedGVK(parent),
	}
}

// traceParentOf returns the trace parent of a call (W3C Trace Context, section 3.2), "" if it has
// none of version 00. Its size is bounded, because an outbox keeps it.
func traceParentOf(header http.Header) string {
	const size = len("00-") + 32 + len("-") + 16 + len("-01")
	parent := header.Get("Traceparent")
	if len(parent) != size || parent[:3] != "00-" {
		return ""
	}
	return parent
}
