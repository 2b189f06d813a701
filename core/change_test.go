package core_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The event names the object of the newest state, and falls back to the last state and to the name
// of the request.
func TestChangeEvent(t *testing.T) {
	t.Parallel()

	at := time.Unix(1_700_000_000, 0)
	scale := schema.GroupVersionKind{Group: "apps", Version: "v1beta1", Kind: "Deployment"}
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	tests := map[string]struct {
		change core.Change
		want   core.WatchEvent
	}{
		"of the new state": {
			core.Change{Operation: update, Old: &core.Object{Generation: 6}, New: decode(t, deployment)},
			core.WatchEvent{
				Operation: update, Field: core.FieldSpec, Generation: 7, Watched: web,
				WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
			},
		},
		"of the last state": {
			core.Change{Operation: remove, Old: decode(t, `{"kind":"A","metadata":{"name":"a"}}`)},
			core.WatchEvent{
				Operation: remove, Field: core.FieldSpec,
				Watched: types.NamespacedName{Name: "a"}, WatchedGVK: schema.GroupVersionKind{Kind: "A"},
			},
		},
		"the kind of the change wins": {
			core.Change{Operation: update, GVK: scale, New: decode(t, deployment)},
			core.WatchEvent{Operation: update, Field: core.FieldSpec, Generation: 7, Watched: web, WatchedGVK: scale},
		},
		"the name of the change stands in": {
			core.Change{Operation: create, Name: web, GVK: scale, New: decode(t, `{"metadata":{"generateName":"w"}}`)},
			core.WatchEvent{Operation: create, Field: core.FieldSpec, Watched: web, WatchedGVK: scale},
		},
		"without any state": {
			core.Change{Operation: update, Name: web, GVK: scale},
			core.WatchEvent{Operation: update, Field: core.FieldSpec, Watched: web, WatchedGVK: scale},
		},
		"of the status": {
			core.Change{Operation: update, Subresource: "status", Name: web, GVK: scale},
			core.WatchEvent{Operation: update, Field: core.FieldStatus, Watched: web, WatchedGVK: scale},
		},
		"of a subresource whose object has another name": {
			core.Change{
				Operation: create, Subresource: "token", Name: web, GVK: scale,
				New: decode(t, `{"kind":"TokenRequest","metadata":{"name":"other","namespace":"other"}}`),
			},
			core.WatchEvent{Operation: create, Field: core.FieldSpec, Watched: web, WatchedGVK: scale},
		},
		"of a subresource, in a request without name": {
			core.Change{Operation: create, Subresource: "binding", GVK: scale, New: decode(t, deployment)},
			core.WatchEvent{Operation: create, Field: core.FieldSpec, Generation: 7, Watched: web, WatchedGVK: scale},
		},
	}

	for name, tt := range tests {
		tt.want.Time = at
		got, err := tt.change.Event(at)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// UID and Base come only from a state on which the API server commits the write. Text that the API
// server does not write counts as unknown.
func TestBase(t *testing.T) {
	t.Parallel()

	state := func(uid, version string) string {
		return `{"metadata":{"name":"a","uid":` + uid + `,"resourceVersion":` + version + `}}`
	}
	known := state(`"u"`, `"7"`)
	for name, tt := range map[string]struct {
		operation     core.Operation
		subresource   string
		before, after string
		uid           types.UID
		base          int64
	}{
		"create":                     {create, "", absent, state(`"u"`, "null"), "u", 0},
		"create of a subresource":    {create, "binding", absent, state(`"u"`, "null"), "", 0},
		"create of an old object":    {create, "", known, known, "", 0},
		"update":                     {update, "", known, known, "u", 7},
		"update of the status":       {update, "status", known, known, "u", 7},
		"update without old state":   {update, "", absent, known, "", 0},
		"delete":                     {remove, "", known, absent, "u", 7},
		"delete of a subresource":    {remove, "other", known, absent, "", 0},
		"connect":                    {connect, "", known, known, "", 0},
		"version is no number":       {update, "", state(`"u"`, `"x"`), known, "", 0},
		"version is not above 0":     {update, "", state(`"u"`, `"0"`), known, "", 0},
		"version is no text":         {update, "", state(`"u"`, `7`), known, "", 0},
		"uid is no text":             {update, "", state(`{}`, `"7"`), known, "", 7},
		"uid is long":                {update, "", state(`"`+strings.Repeat("u", 65)+`"`, `"7"`), known, "", 7},
		"uid has an escape sequence": {update, "", state(`"\u0041"`, `"7"`), known, "A", 7},
	} {
		uid, base := change(t, tt.operation, tt.subresource, tt.before, tt.after).Base()
		if uid != tt.uid || base != tt.base {
			t.Errorf("%s: Base = %q, %d, want %q, %d", name, uid, base, tt.uid, tt.base)
		}
	}
}

// An admission request about a Namespace states its name as its namespace, too.
func TestNamespacesAreClusterScoped(t *testing.T) {
	t.Parallel()
	for kind, want := range map[schema.GroupVersionKind]string{
		{Version: "v1", Kind: "Namespace"}:                       "/foo",
		{Version: "v2", Kind: "Namespace"}:                       "/foo",
		{Group: "example.com", Version: "v1", Kind: "Namespace"}: "foo/foo",
		{Version: "v1", Kind: "ConfigMap"}:                       "foo/foo",
	} {
		c := core.Change{
			Operation: update, GVK: kind,
			Name: types.NamespacedName{Namespace: "foo", Name: "foo"},
			New:  decode(t, `{"metadata":{"name":"foo"}}`),
		}

		event, err := c.Event(time.Time{})
		if err != nil || event.Watched.String() != want {
			t.Errorf("%v is reported as %s, %v, want %s", kind, event.Watched, err, want)
		}
	}
}

func TestEventRefusesObjectsWithoutIdentity(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("x", 1<<10+1)
	for name, c := range map[string]core.Change{
		"nothing":         {},
		"no name":         {New: decode(t, `{"metadata":{"generateName":"a-"}}`)},
		"long name":       {Name: types.NamespacedName{Name: long}},
		"long namespace":  {Name: types.NamespacedName{Namespace: long, Name: "a"}},
		"long kind":       {Name: types.NamespacedName{Name: "a"}, GVK: schema.GroupVersionKind{Kind: long}},
		"long apiVersion": {New: decode(t, `{"apiVersion":"`+long+`/v1","metadata":{"name":"a"}}`)},
	} {
		event, err := c.Event(time.Now())
		if !errors.Is(err, core.ErrInvalidObject) || !core.IsPermanent(err) || len(err.Error()) > 200 {
			t.Errorf("%s: Event = %+v, %v, want a short ErrInvalidObject", name, event, err)
		}
	}
}
