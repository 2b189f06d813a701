package controllerruntime_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// oneOfRuntime makes one request of all objects of a runtime, so that one reconcile reads them all.
func oneOfRuntime(_ context.Context, d core.Delivery) ([]string, error) {
	return []string{string(d.Runtime)}, nil
}

func operateByRuntime(t *testing.T, handled func(hook.Handled)) *operated {
	t.Helper()
	o := &operated{
		t: t, queue: newQueue(t), request: "skr", there: stored{uid: "u", version: "7", kind: "K"},
		source: controllerruntime.NewSource(oneOfRuntime, controllerruntime.SourceOptions{Handled: handled}),
	}
	started(t, o.source, o.queue)
	return o
}

// reconcileAbsentAnd reads two names in one reconcile: one that is absent, and o at a version.
func (o *operated) reconcileAbsentAnd(absent, version string) {
	c := o.client()
	there := o.there
	o.there.uid = ""
	_ = c.Get(o.t.Context(), client.ObjectKey{Name: absent}, new(metav1.PartialObjectMetadata))
	o.there = there
	o.there.version = version
	o.get(c)
}

// TestNoEventSilencesAnObject sends forged events, as a pod without a key can, and lets a reconcile
// read what they name. Then it counts the later writes of object u that are reconciled.
func TestNoEventSilencesAnObject(t *testing.T) {
	t.Parallel()

	const writes = 13
	for name, forged := range map[string]core.Delivery{
		"control: no forged event":            {},
		"absent name":                         named("optional", "K", core.OperationUpdate, "u", 1),
		"deletion of an absent name":          named("optional", "K", core.OperationDelete, "u", 1),
		"other kind":                          named("o", "Other", core.OperationDelete, "u", 1),
		"kind that is a list":                 named("o", "KList", core.OperationDelete, "u", 1),
		"high base":                           named("optional", "K", core.OperationUpdate, "u", 1<<62),
		"creation":                            named("optional", "K", core.OperationCreate, "u", 0),
		"deletion of the object itself":       named("o", "K", core.OperationDelete, "u", 1),
		"deletion with a high base":           named("o", "K", core.OperationDelete, "u", 1<<62),
		"write of the object, with high base": named("o", "K", core.OperationUpdate, "u", 1<<62),
	} {
		for _, createdLater := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, object is created later: %v", name, createdLater), func(t *testing.T) {
				t.Parallel()

				o := operateByRuntime(t, nil)
				if forged.Runtime != "" {
					o.deliver(forged)
				}
				if createdLater {
					o.there.uid = ""
					o.get(o.client())
					o.there.uid = "u"
					if !o.deliver(named("o", "K", core.OperationCreate, "u", 0)) {
						t.Error("the creation is not reconciled")
					}
				}

				o.reconcileAbsentAnd("optional", "7")
				reconciled := 0
				for base := int64(7); base < 7+writes; base++ {
					if forged.Runtime != "" {
						o.deliver(forged) // It is sent again and again, so that nothing is forgotten.
					}
					if o.event("u", base) {
						reconciled++
						o.reconcileAbsentAnd("optional", strconv.FormatInt(base+1, 10))
					}
				}

				if reconciled != writes {
					t.Errorf("%d of %d writes are reconciled", reconciled, writes)
				}
			})
		}
	}
}

// TestOnlyTheAbsenceOfTheObjectCounts lets Get fail with the NotFounds that other things cause.
func TestOnlyTheAbsenceOfTheObjectCounts(t *testing.T) {
	t.Parallel()

	notFound := func(group, resource, name string) error {
		return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: resource}, name)
	}
	withoutDetails := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
	}}
	for name, tt := range map[string]struct {
		err  error
		want bool // The deletion is reconciled again.
	}{
		"control: the object":           {err: notFound("g", "plural", "o")},
		"the cluster":                   {err: notFound("cluster.example.com", "clusters", "skr"), want: true},
		"the cluster of the same name":  {err: notFound("cluster.example.com", "clusters", "o"), want: true},
		"the Secret of the kubeconfig":  {err: notFound("", "secrets", "kubeconfig"), want: true},
		"a Secret of the same name":     {err: notFound("", "secrets", "o"), want: true},
		"another resource of the group": {err: notFound("g", "plurals", "o"), want: true},
		"its kind as resource":          {err: notFound("g", "K", "o"), want: true},
		"another name":                  {err: notFound("g", "plural", "p"), want: true},
		"the version is not served":     {err: notFound("", "", ""), want: true},
		"no details":                    {err: withoutDetails, want: true},
		"wrapped":                       {err: fmt.Errorf("connecting: %w", notFound("g", "plural", "o")), want: true},
		"beside another error":          {err: errors.Join(notFound("g", "plural", "o"), errors.New("x")), want: true},
		"a proxy":                       {err: pageNotFound, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := operate(t)
			deletion := named("o", "K", core.OperationDelete, "u", 7)
			o.event("u", 6)
			o.get(o.client()) // It exists.
			o.deliver(deletion)
			o.there.err = tt.err
			o.get(o.client())
			if got := o.deliver(deletion); got != tt.want {
				t.Errorf("the deletion is reconciled again: %v, want %v", got, tt.want)
			}
			if !o.event("u", 8) {
				t.Error("a later write is not reconciled")
			}
		})
	}
}

// A deletion that a finalizer held ends with an UPDATE, and the object is absent.
func TestTheEndOfAFinalizerIsReadOnce(t *testing.T) {
	t.Parallel()

	o := operate(t)
	o.event("u", 6)
	o.get(o.client())
	if !o.event("u", 7) {
		t.Fatal("the removal of the finalizer is not reconciled")
	}

	o.there.uid = ""
	o.get(o.client())
	if o.event("u", 7) {
		t.Error("the resend is reconciled, although a reconcile read the absence")
	}

	o.there.uid = "u" // A read that finds the object again shows that the absence was none.
	o.get(o.client())
	if !o.event("u", 7) {
		t.Error("the object counts as absent after a read that has found it")
	}
}

// TestHostileRuntimesLeaveRoomForReads lets runtimes name ever new objects, each with another
// request.
func TestHostileRuntimesLeaveRoomForReads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ hostile, names int }{{0, 0}, {3, 12_000}, {130, 300}, {400, 100}} {
		t.Run(fmt.Sprintf("%d runtimes with %d names", tt.hostile, tt.names), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := operate(t)
				for r := range tt.hostile {
					for n := range tt.names {
						d := named(strconv.Itoa(n), "K", core.OperationUpdate, types.UID(strconv.Itoa(n)), 1)
						d.Runtime = core.RuntimeID(fmt.Sprint("hostile-", r))
						if err := o.source.Handle(t.Context(), d); err != nil {
							t.Fatal(err)
						}
					}
				}

				drain(o.queue)
				for _, uid := range []types.UID{"u", "v"} { // Two objects of an honest runtime.
					o.there.uid = uid
					o.event(uid, 6)
					o.get(o.client())
					if o.event(uid, 6) {
						t.Errorf("the resend of a write of %s that was read is reconciled again", uid)
					}
				}
			})
		})
	}
}

// TestAnAPIServerThatIsRestored has lower versions of the same objects. Forged events keep the
// source from forgetting what was read before.
func TestAnAPIServerThatIsRestored(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ readsAgain, isForged bool }{
		"control: without events for two minutes": {},
		"a reconcile reads the restored object":   {readsAgain: true},
		"forged events, and no read":              {isForged: true},
		"forged events, and a read":               {readsAgain: true, isForged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := operate(t)
				o.there.version = "1000"
				o.event("u", 999)
				o.get(o.client())
				if o.event("u", 999) {
					t.Fatal("the resend is reconciled, although a reconcile read the write")
				}
				if tt.readsAgain {
					o.there.version = "500"
					o.get(o.client())
				}

				for range 10 {
					if tt.readsAgain {
						break
					}

					time.Sleep(20 * time.Second) // In a bubble.
					if tt.isForged {
						o.event("u", 1)
					}
				}

				if !o.event("u", 500) {
					t.Error("a write after the restore is not reconciled")
				}
			})
		})
	}
}
