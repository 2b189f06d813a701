package controllerruntime_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// stored is the one object of a runtime, absent without uid.
type stored struct {
	client.Client

	uid     types.UID
	version string
	kind    string
	err     error
}

func (s *stored) GroupVersionKindFor(of runtime.Object) (schema.GroupVersionKind, error) {
	kind := s.kind
	if _, isList := of.(*metav1.PartialObjectMetadataList); isList {
		kind += "List"
	}
	return schema.GroupVersionKind{Group: "g", Version: "v2", Kind: kind}, nil
}

// RESTMapper has a plural that nobody can guess.
func (s *stored) RESTMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	kind := schema.GroupVersion{Group: "g", Version: "v2"}.WithKind(s.kind)
	mapper.AddSpecific(kind, resource("plural"), resource("singular"), meta.RESTScopeRoot)
	return mapper
}

func resource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "g", Version: "v2", Resource: name}
}

func (s *stored) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if s.uid == "" && s.err == nil {
		return apierrors.NewNotFound(resource("plural").GroupResource(), name.Name)
	}
	into.SetUID(s.uid)
	into.SetResourceVersion(s.version)
	return s.err
}

func (s *stored) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	if list, ok := into.(*metav1.PartialObjectMetadataList); ok {
		list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "o", UID: s.uid, ResourceVersion: s.version}}}
	}
	return s.err
}

// pageNotFound is what client-go makes of a 404 that names no object: that of a proxy, or of an API
// server that does not serve the version of a kind.
var pageNotFound = apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource("plural").GroupResource(),
	"o", "404 page not found", 0, true)

// operated is a source with one runtime, as an operator uses it.
type operated struct {
	t       *testing.T
	source  *stringSource
	queue   stringQueue
	request string
	there   stored
}

func operate(t *testing.T) *operated {
	t.Helper()
	o := &operated{
		t: t, queue: newQueue(t), request: "skr:o", there: stored{uid: "u", version: "7", kind: "K"},
		source: controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{}),
	}
	started(t, o.source, o.queue)
	return o
}

// event delivers an event, and reports whether a reconcile follows.
func (o *operated) event(uid types.UID, base int64) (reconciles bool) {
	o.t.Helper()
	return o.deliver(named("o", "K", core.OperationUpdate, uid, base))
}

func named(name, kind string, operation core.Operation, uid types.UID, base int64) core.Delivery {
	d := delivery("skr", name)
	d.Event.WatchedGVK = schema.GroupVersionKind{Group: "g", Version: "v1", Kind: kind}
	d.Event.Operation = operation
	d.Event.UID = uid
	d.Event.Base = base
	return d
}

func (o *operated) deliver(d core.Delivery) (reconciles bool) {
	o.t.Helper()
	if err := o.source.Handle(o.t.Context(), d); err != nil {
		o.t.Fatal(err)
	}
	return len(drain(o.queue)) > 0
}

func (o *operated) client() client.Client { return o.source.Client(o.request, "skr", &o.there) }

func (o *operated) get(c client.Client, opts ...client.GetOption) {
	_ = c.Get(o.t.Context(), client.ObjectKey{Name: "o"}, new(metav1.PartialObjectMetadata), opts...)
}

// An API server was restored from a backup, so that the versions of its objects start again below
// those that reconciles have read. The agent requests a resync, and later writes must be
// reconciled.
func TestAResyncEndsEarlierReads(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(o *operated, resync func()){
		"read before the resync": func(o *operated, resync func()) {
			o.get(o.client())
			if o.event("u", 6) {
				t.Error("a write that a reconcile has read is reconciled again")
			}
			resync()
		},
		"a reconcile that began before the resync": func(o *operated, resync func()) {
			c := o.client()
			resync()
			o.get(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := operate(t)
			o.event("u", 6)
			read(o, func() { o.deliver(resyncOf("skr")) })

			o.there.version = "4"
			if !o.event("u", 3) {
				t.Error("a write after the restore is not reconciled, because an earlier reconcile has read a higher version")
			}

			o.get(o.client())
			if o.event("u", 3) {
				t.Error("a read after the resync does not count")
			}
		})
	}
}

// The resend of a resync comes 35 s after the resync, as the last resends of many events do. The
// reads between the two are of the restored API server.
func TestAResendOfAResyncEndsNoReads(t *testing.T) {
	t.Parallel()

	o := operate(t)
	first := resyncOf("skr")
	second := resyncOf("skr")
	first.Event.Time = time.Unix(100, 0)
	second.Event.Time = time.Unix(200, 0)
	o.deliver(first)
	o.event("u", 6)
	o.get(o.client())
	o.deliver(first)
	if o.event("u", 6) {
		t.Error("a resend of the resync ends a read that came after the resync")
	}

	o.deliver(second)
	if !o.event("u", 6) {
		t.Error("a second resync ends no reads")
	}
}

// TestReadWritesNeedNoReconcile delivers an event, reconciles, and delivers it again.
func TestReadWritesNeedNoReconcile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		operation core.Operation // of the event. Default: UPDATE
		base      int64
		uid       types.UID // of the event. Default: that of the object
		there     stored
		reconcile func(*operated)
		want      bool // reconciles again
	}{
		"read after the write":             {base: 6, there: stored{uid: "u", version: "7"}},
		"read after a later write":         {base: 6, there: stored{uid: "u", version: "10"}},
		"read before the commit":           {base: 7, there: stored{uid: "u", version: "7"}, want: true},
		"read from a cache that lags":      {base: 7, there: stored{uid: "u", version: "6"}, want: true},
		"created":                          {there: stored{uid: "u", version: "7"}},
		"created, not committed":           {uid: "u", want: true},
		"deleted":                          {operation: core.OperationDelete, base: 6, uid: "u"},
		"absent, and never read before":    {base: 6, uid: "u", want: true},
		"deleted and created again":        {base: 6, uid: "u", there: stored{uid: "v", version: "8"}, want: true},
		"deletion held by a finalizer":     {base: 6, there: stored{uid: "u", version: "7"}},
		"no number":                        {base: 6, there: stored{uid: "u", version: "x7"}, want: true},
		"read failed":                      {base: 6, there: stored{uid: "u", version: "7", err: errors.New("x")}, want: true},
		"read as another kind":             {base: 6, there: stored{uid: "u", version: "7", kind: "Other"}, want: true},
		"absent, but of another kind":      {operation: core.OperationDelete, base: 6, uid: "u", there: stored{kind: "Other"}, want: true},
		"absent, of a kind that is a list": {operation: core.OperationDelete, base: 6, uid: "u", there: stored{kind: "KList"}, want: true},
		"not read":                         {base: 6, there: stored{uid: "u", version: "7"}, want: true, reconcile: func(*operated) {}},
		"an event that names no uid":       {uid: "-", base: 6, there: stored{version: "7"}, want: true},
		"absent, says a proxy":             {operation: core.OperationDelete, base: 6, there: stored{uid: "u", version: "7", err: pageNotFound}, want: true},
		"absent, perhaps in an old answer": {operation: core.OperationDelete, base: 6, uid: "u", want: true, reconcile: func(o *operated) { o.get(o.client(), &client.GetOptions{}) }},
		"read by list": {base: 6, there: stored{uid: "u", version: "7"}, reconcile: func(o *operated) {
			_ = o.client().List(o.t.Context(), new(metav1.PartialObjectMetadataList))
		}},
		"list failed": {base: 6, there: stored{uid: "u", version: "7", err: errors.New("x")}, want: true, reconcile: func(o *operated) {
			_ = o.client().List(o.t.Context(), new(metav1.PartialObjectMetadataList))
		}},
		"read for another request": {base: 6, there: stored{uid: "u", version: "7"}, want: true, reconcile: func(o *operated) {
			o.get(o.source.Client("skr:p", "skr", &o.there))
		}},
		"read of another runtime": {base: 6, there: stored{uid: "u", version: "7"}, want: true, reconcile: func(o *operated) {
			o.get(o.source.Client(o.request, "skr-2", &o.there))
		}},
		"read again after the commit, as after a conflict": {base: 7, there: stored{uid: "u", version: "7"}, want: true, reconcile: func(o *operated) {
			c := o.client()
			o.get(c)
			o.there.version = "8"
			o.get(c)
		}},
		"absent after a read": {base: 7, there: stored{uid: "u", version: "7"}, want: true, reconcile: func(o *operated) {
			c := o.client()
			o.get(c)
			o.there.uid = ""
			o.get(c)
		}},
		"absent, then created": {operation: core.OperationCreate, uid: "u", want: true, reconcile: func(o *operated) {
			c := o.client()
			o.get(c)
			o.there = stored{uid: "u", version: "8", kind: "K"}
			o.get(c)
		}},
		"another one, then created again": {uid: "u", there: stored{uid: "v", version: "7"}, want: true, reconcile: func(o *operated) {
			c := o.client()
			o.get(c)
			o.there = stored{uid: "u", version: "8", kind: "K"}
			o.get(c)
		}},
		"not in a list, then created": {uid: "u", want: true, reconcile: func(o *operated) {
			c := o.client()
			_ = c.List(o.t.Context(), new(metav1.PartialObjectMetadataList))
			o.there = stored{uid: "u", version: "8", kind: "K"}
			o.get(c)
		}},
		"not in a list of others": {uid: "u", there: stored{uid: "u", version: "8"}, reconcile: func(o *operated) {
			c := o.client()
			o.there.uid = ""
			_ = c.List(o.t.Context(), new(metav1.PartialObjectMetadataList), client.InNamespace("other"))
			o.there.uid = "u"
			o.get(c)
		}},
		"the next reconcile reads again": {base: 7, there: stored{uid: "u", version: "7"}, reconcile: func(o *operated) {
			o.get(o.client())
			o.there.version = "8"
			o.get(o.client())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := operate(t)
			if o.there = tt.there; o.there.kind == "" {
				o.there.kind = "K"
			}

			uid := tt.uid
			switch uid {
			case "":
				uid = tt.there.uid
			case "-":
				uid = ""
			}

			event := named("o", "K", cmp.Or(tt.operation, core.OperationUpdate), uid, tt.base)
			if !o.deliver(event) {
				t.Fatal("the first event is not reconciled")
			}
			if tt.reconcile == nil {
				tt.reconcile = func(o *operated) { o.get(o.client()) }
			}

			tt.reconcile(o)
			if got := o.deliver(event); got != tt.want {
				t.Errorf("the resend is reconciled: %v, want %v", got, tt.want)
			}
		})
	}
}

// A reconcile that began before the event may act on an older read.
func TestReadsOfEarlierReconcilesDoNotCount(t *testing.T) {
	t.Parallel()

	o := operate(t)
	before := o.client()
	o.event("u", 6)
	o.get(before)
	if !o.event("u", 6) {
		t.Error("the read of a reconcile that began before the event counts")
	}

	o.there.uid = ""
	o.event("created", 0)
	between := o.client()
	deletion := named("o", "K", core.OperationDelete, "created", 6) // It exists only now.
	o.deliver(deletion)
	o.get(between)
	if !o.deliver(deletion) {
		t.Error("an object is gone that did not exist before the reconcile")
	}
}

// A write after the last read is reconciled, also if a read came before its commit.
func TestNewWritesAreReconciled(t *testing.T) {
	t.Parallel()

	o := operate(t)
	o.event("u", 6)
	o.get(o.client())
	if !o.event("u", 7) {
		t.Error("a write after the read is not reconciled")
	}

	o.get(o.client())
	if !o.event("u", 7) {
		t.Error("a write that is not committed counts as read")
	}
}

// An object is forgotten after the time of its resends, and beyond the number of objects that fit.
func TestReadsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := operate(t)
		o.event("u", 6)
		o.get(o.client())
		time.Sleep(2 * time.Minute) // In a bubble.
		if !o.event("u", 6) {
			t.Error("the object is remembered after its resends")
		}

		for i := range 300 {
			o.event(types.UID(strconv.Itoa(i)), 6)
		}

		o.there.uid = "299"
		o.get(o.client())
		o.event("299", 6)
		time.Sleep(100 * time.Millisecond) // Without a place in the book, a request waits.
		if len(drain(o.queue)) == 0 {
			t.Error("a runtime makes the source remember 300 objects")
		}

		time.Sleep(2 * time.Minute)
		o.event("299", 6)
		o.get(o.client())
		if o.event("299", 6) {
			t.Error("there is no room after the sweep")
		}
	})
}

// A source that no controller has started returns the client itself.
func TestClientBeforeTheStart(t *testing.T) {
	t.Parallel()
	source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{})
	there := &stored{}
	if got := source.Client("r", core.RuntimeID("skr"), there); got != client.Client(there) {
		t.Errorf("Client before Start = %v, want the client itself", got)
	}
}

// Without Client each change is reconciled three times, and nothing else shows why.
func TestAnUnusedClientIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"used": 0, "not used": 1} {
		synctest.Test(t, func(t *testing.T) {
			o := operate(t)
			log := &records{}
			o.source = controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{
				Logger: controllerruntime.Logger(funcr.New(log.add, funcr.Options{})),
			})
			started(t, o.source, o.queue)
			for range 3 {
				o.event("u", 6)
				if want == 0 {
					o.client()
				}
				time.Sleep(32 * time.Second) // In a bubble.
			}

			if n := len(log.lines); n != want || want > 0 && !log.has("Source.Client") {
				t.Errorf("%s: the log is %q, want %d lines", name, log.lines, want)
			}
		})
	}
}
