package runtimes

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// A runtime that takes connections, and answers nothing.
func TestARuntimeThatHangsIsLetGo(t *testing.T) {
	hangs := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Delete: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.DeleteOption) error {
			<-ctx.Done()

			return ctx.Err()
		},
	})

	synctest.Test(t, func(t *testing.T) {
		object, reported := deleted(DefaultGiveUp), 0
		r := newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) { return hangs, nil })
		r.opts.Report = func(ctx context.Context, _ client.Object, status installation.Status) error {
			if status.State == installation.Removed {
				reported++
			}

			return ctx.Err()
		}

		begun := time.Now()
		if err := reconcileOnce(t, r, object); err != nil {
			t.Error("when it was to be let go:", err)
		}

		if took := time.Since(begun); reported != 1 || took > DefaultTimeout {
			t.Errorf("reported as removed %d times within %v, want once, within %v", reported, took, DefaultTimeout)
		}

		wantGone(t, r.client, object)
	})
}

func TestARuntimeThatIsLetGoKeepsNoCertificate(t *testing.T) {
	t.Parallel()

	object, certificate, key := deleted(DefaultGiveUp+time.Hour), issued(), &corev1.Secret{ObjectMeta: issued().ObjectMeta}
	broken := true
	c := interceptor.NewClient(newPlane(t, object, certificate, key), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if broken {
				return errors.New("the API server is away")
			}

			return c.Delete(ctx, object, opts...)
		},
	})
	r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) { return nil, errors.New("out of reach") })

	if err := reconcileOnce(t, r, object); err == nil {
		t.Error("let go with its certificate")
	}

	if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal("while its certificate can not be removed:", err)
	}

	broken = false

	if err := reconcileOnce(t, r, object); err != nil {
		t.Error(err)
	}

	for _, left := range []client.Object{object, certificate, key} {
		wantGone(t, c, left)
	}
}

func TestARuntimeThatIsOutOfReachKeepsItsCertificateForAWhile(t *testing.T) {
	t.Parallel()

	object, certificate := deleted(DefaultGiveUp/2), issued()
	c := newPlane(t, object, certificate)
	r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) { return nil, errors.New("out of reach") })

	if err := reconcileOnce(t, r, object); err == nil {
		t.Error("let go at once")
	}

	for _, held := range []client.Object{object, certificate} {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
			t.Error(err)
		}
	}
}

// Its ID is too long for a Common Name.
func TestARuntimeThatCanHaveNoCertificateIsNotHeld(t *testing.T) {
	t.Parallel()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: strings.Repeat("a", 70)}}
	c := newPlane(t, object)
	r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) { return nil, ErrGone })

	if err := reconcileOnce(t, r, object); !errors.Is(err, certificates.ErrInvalidRuntime) {
		t.Errorf("%v, want %v", err, certificates.ErrInvalidRuntime)
	}

	if err := c.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	if err := reconcileOnce(t, r, object); err != nil {
		t.Error(err)
	}

	wantGone(t, c, object)
}

// asked is an issuer that notes for whom a certificate is asked for.
type asked struct {
	Certificates

	owner client.Object
}

func (a *asked) EnsureRuntime(_ context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error) {
	a.owner = r.Owner

	return certificates.RuntimeStatus{}, nil
}

func TestACertificateIsOwnedByWhatRepresentsItsRuntime(t *testing.T) {
	t.Parallel()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: string(prod), UID: "object"}}
	issuer := &asked{}
	r := newReconciler(t, newPlane(t, object), nil)
	r.certificates = issuer

	if err := reconcileOnce(t, r, object); err != nil {
		t.Fatal(err)
	}

	want := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: string(prod), UID: "object"},
	}
	if diff := cmp.Diff(client.Object(want), issuer.owner); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
}

// issued is the certificate of the runtime that deleted represents.
func issued() *certv1.Certificate {
	return &certv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kcp", Name: string(prod) + "-watcher-tls", Labels: map[string]string{certificates.LabelSet: "watcher"},
		},
		Spec: certv1.CertificateSpec{CommonName: string(prod)},
	}
}

// deleted is an object that represents a runtime, and was deleted that long ago.
func deleted(ago time.Duration) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "kcp", Name: string(prod), UID: "object", Finalizers: []string{Finalizer},
		DeletionTimestamp: &metav1.Time{Time: time.Now().Add(-ago)},
	}}
}

// newPlane is a control plane where, as with a real one, no request succeeds after its context has ended.
func newPlane(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1beta2.AddToScheme(scheme), certv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}

	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := ctx.Err(); err != nil {
				return err
			}

			return c.Patch(ctx, object, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if err := ctx.Err(); err != nil {
				return err
			}

			return c.Delete(ctx, object, opts...)
		},
	}).Build()
}

// newReconciler takes ConfigMaps for runtimes, and issues real certificates.
func newReconciler(t *testing.T, c client.Client, connect Connect) *reconciler {
	t.Helper()

	set, err := certificates.New(c, types.NamespacedName{Namespace: "kcp", Name: "watcher"}, []string{"listener.example.com"},
		certificates.ConfirmationsFunc(func(string, []core.RuntimeID) []core.RuntimeID { return nil }), certificates.Options{})
	if err != nil {
		t.Fatal(err)
	}

	installer, err := installation.New("image", "control-plane.example.com:443", installation.Options{})
	if err != nil {
		t.Fatal(err)
	}

	return &reconciler{
		client: c, scheme: c.Scheme(), prototype: &corev1.ConfigMap{}, gvk: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		identify: func(_ context.Context, object client.Object) (Identity, error) {
			return Identity{ID: core.RuntimeID(object.GetName()), Domain: "a.example.com"}, nil
		},
		connect: connect, certificates: set, installer: installer, opts: Options{}.withDefaults(), forgetter: newForgetter(noFleet{}),
	}
}

func reconcileOnce(t *testing.T, r *reconciler, object client.Object) error {
	t.Helper()

	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})

	return err
}

func wantGone(t *testing.T, c client.Client, object client.Object) {
	t.Helper()

	if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
		t.Errorf("%T %s is still there: %v", object, object.GetName(), err)
	}
}
