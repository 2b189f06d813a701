package runtimes

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// A callback of the operator panics once. controller-runtime recovers the panic and reconciles the
// runtime again, which must then be free for a worker. A second runtime is not concerned.
func TestAPanicOfACallbackLeavesNoRuntimeBusy(t *testing.T) {
	t.Parallel()

	for name, put := range map[string]func(r *reconciler, once func()){
		"identify": func(r *reconciler, once func()) {
			identify := r.identify
			r.identify = func(ctx context.Context, object client.Object) (Identity, error) {
				once()
				return identify(ctx, object)
			}
		},
		"connect": func(r *reconciler, once func()) {
			r.connect = func(context.Context, client.Object) (client.Client, error) {
				once()
				return nil, ErrGone
			}
		},
		"ControlPlane": func(r *reconciler, once func()) {
			r.opts.ControlPlane = func(context.Context, client.Object) (string, error) {
				once()
				return "", errors.New("no address yet")
			}
		},
		"Report": func(r *reconciler, once func()) {
			r.opts.Report = func(context.Context, client.Object, installation.Status) error {
				once()
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			first := newObject("first")
			second := newObject("second")
			plane := newPlane(t, first, second)
			r := newReconciler(t, plane, func(context.Context, client.Object) (client.Client, error) { return plane, nil })
			r.certificates = ready{}

			panics := 0
			put(r, func() {
				panics++
				if panics == 1 {
					panic("a callback of the operator")
				}
			})

			reconcileAndRecover(t, r, first)
			if panics == 0 {
				t.Fatal("control: the callback was not called, so it did not panic")
			}

			for _, object := range []client.Object{first, second} {
				before := panics
				_, _ = r.lanes.Regular.Reconcile(t.Context(), requestOf(object))
				if panics == before {
					t.Errorf("%s counts as reconciled by another worker, want it free", object.GetName())
				}
			}
		})
	}
}

// reconcileAndRecover does what a worker of controller-runtime does with a panic.
func reconcileAndRecover(t *testing.T, r *reconciler, object client.Object) {
	t.Helper()

	defer func() {
		if p := recover(); p != nil {
			t.Log(fmt.Sprint("recovered: ", p))
		}
	}()

	_, _ = r.lanes.Regular.Reconcile(t.Context(), requestOf(object))
}
