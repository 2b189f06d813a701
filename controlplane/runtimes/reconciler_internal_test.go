package runtimes

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// A runtime that takes connections, and answers nothing.
func TestARuntimeThatHangsIsLetGo(t *testing.T) {
	hangs := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			<-ctx.Done()
			return ctx.Err()
		},
	})
	synctest.Test(t, func(t *testing.T) {
		object := deleted(0)
		reported := 0
		r := newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) {
			return hangs, nil
		})

		r.opts.Report = func(ctx context.Context, _ client.Object, status installation.Status) error {
			if status.State == installation.Removed {
				reported++
			}
			return ctx.Err()
		}
		if err := reconcileOnce(t, r, object); err == nil {
			t.Error("let go at once")
		}

		time.Sleep(defaultGiveUp + time.Second)
		begun := time.Now()
		if err := reconcileOnce(t, r, object); err != nil {
			t.Error("when it was to be let go:", err)
		}
		if took := time.Since(begun); reported != 1 || took > defaultTimeout {
			t.Errorf("reported as removed %d times within %v, want once, within %v", reported, took, defaultTimeout)
		}

		wantGone(t, r.client, object)
	})
}

func TestARuntimeThatIsLetGoKeepsNoCertificate(t *testing.T) {
	t.Parallel()

	object := deleted(0)
	certificate := issued()
	key := &corev1.Secret{ObjectMeta: issued().ObjectMeta}
	broken := true
	c := interceptor.NewClient(newPlane(t, object, certificate, key), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if broken {
				return errors.New("the API server is away")
			}
			return c.Delete(ctx, object, opts...)
		},
	})

	r := newReconciler(t, c, outOfReach)
	_ = reconcileOnce(t, r, object) // It fails for the first time.
	r.opts.GiveUp = time.Nanosecond
	if err := reconcileOnce(t, r, object); err == nil {
		t.Error("let go with its certificate")
	}

	if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal("while its certificate cannot be removed:", err)
	}

	broken = false
	check(t, reconcileOnce(t, r, object))
	for _, left := range []client.Object{object, certificate, key} {
		wantGone(t, c, left)
	}
}

// The object was deleted long ago, while no operator ran. The first error that is seen must not
// orphan the agent.
func TestARuntimeThatIsOutOfReachKeepsItsCertificateForAWhile(t *testing.T) {
	t.Parallel()

	object := deleted(2 * defaultGiveUp)
	certificate := issued()
	c := newPlane(t, object, certificate)
	r := newReconciler(t, c, outOfReach)
	if err := reconcileOnce(t, r, object); err == nil {
		t.Error("let go at once")
	}

	for _, held := range []client.Object{object, certificate} {
		check(t, c.Get(t.Context(), client.ObjectKeyFromObject(held), held))
	}
}

// The time to give up begins again after a removal that was withdrawn.
func TestAWithdrawnRemovalDoesNotCount(t *testing.T) {
	for name, skip := range map[string]bool{"withdrawn": false, "skipped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				object := newObject(string(prod))
				withdrawn := false
				object.Finalizers = []string{names.Names{}.WithDefaults().Finalizer}
				r := newReconciler(t, newPlane(t, object), outOfReach)
				r.certificates = owned{}
				r.identify = func(context.Context, client.Object) (Identity, error) {
					return Identity{ID: prod, Domain: "a.example.com", Remove: skip || !withdrawn}, nil
				}

				_ = reconcileOnce(t, r, object) // It fails for the first time.
				withdrawn = true
				setSkip(t, r, object, withdrawn && skip)
				_ = reconcileOnce(t, r, object)
				time.Sleep(7 * 24 * time.Hour)
				withdrawn = false
				setSkip(t, r, object, false)

				if err := reconcileOnce(t, r, object); err == nil {
					t.Error("let go at once")
				}

				time.Sleep(defaultGiveUp + time.Second)
				if err := reconcileOnce(t, r, object); err != nil {
					t.Error("when it was to be let go:", err)
				}
			})
		})
	}
}

func setSkip(t *testing.T, r *reconciler, object client.Object, skip bool) {
	t.Helper()

	key := client.ObjectKeyFromObject(object)
	check(t, r.client.Get(t.Context(), key, object))
	object.SetLabels(map[string]string{names.Names{}.Key(labelSkip): strconv.FormatBool(skip)})
	check(t, r.client.Update(t.Context(), object))
}

// The operator restarts before each attempt, and more often than every hour.
func TestAnOperatorThatRestartsGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := deleted(0)
		plane := newPlane(t, object)
		attempt := func() error {
			return reconcileOnce(t, newReconciler(t, plane, outOfReach), object)
		}

		for begun := time.Now(); time.Since(begun) < defaultGiveUp; time.Sleep(defaultGiveUp / 4) {
			if err := attempt(); err == nil {
				t.Fatalf("let go after %v", time.Since(begun))
			}
		}

		time.Sleep(time.Second)
		if err := attempt(); err != nil {
			t.Error("when it was to be let go:", err)
		}

		wantGone(t, plane, object)
	})
}

// A runtime that keeps its object still needs the report, as of a condition.
func TestADeletionDoesNotWaitForAReport(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]*corev1.ConfigMap{"deleted": deleted(0), "left": newObject(string(prod))} {
		held.Finalizers = []string{names.Names{}.WithDefaults().Finalizer}
		c := newPlane(t, held)
		r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) { return nil, ErrGone })
		r.identify = func(context.Context, client.Object) (Identity, error) { return Identity{ID: prod, Remove: true}, nil }
		r.opts.Report = func(context.Context, client.Object, installation.Status) error { return errors.New("denied") }

		if err := reconcileOnce(t, r, held); (err == nil) != (name == "deleted") {
			t.Errorf("%s: %v", name, err)
		}
		if name == "deleted" {
			wantGone(t, c, held)
		}
	}
}

// A runtime may be made after its object, and so may its kubeconfig.
func TestARuntimeWithoutAWayIsAFailureInTheEnd(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]int{time.Minute: 0, 2 * connectionAwaited: 1} {
		object := newObject(string(prod))
		object.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		r := newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) { return nil, ErrGone })
		r.certificates = owned{}

		if err := reconcileOnce(t, r, object); err != nil {
			t.Error(err)
		}
		if failed := r.opts.Overview.Installations().Failed; len(failed) != want {
			t.Errorf("after %v, failed are %v, want %d", age, failed, want)
		}
	}
}

// owned has issued certificates that belong to the object.
type owned struct{ ready }

func (owned) OwnsRuntime(context.Context, certificates.Runtime) (bool, error) { return true, nil }

func (owned) RemoveRuntime(context.Context, certificates.Runtime) error { return nil }

// Its ID is too long for a Common Name.
func TestARuntimeThatCanHaveNoCertificateIsNotHeld(t *testing.T) {
	t.Parallel()

	object := newObject(strings.Repeat("a", 70))
	c := newPlane(t, object)
	r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) { return nil, ErrGone })
	if err := reconcileOnce(t, r, object); core.ReasonOf(err) != "invalid_runtime" {
		t.Errorf("%v, want the reason invalid_runtime", err)
	}

	check(t, c.Delete(t.Context(), object))
	check(t, reconcileOnce(t, r, object))
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
	check(t, reconcileOnce(t, r, object))
	want := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: string(prod), UID: "object"},
	}
	if diff := cmp.Diff(client.Object(want), issuer.owner); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
}

// Reports in the order in which they came, and Events.
type observedReports struct {
	statuses []installation.Status
	events   *events.FakeRecorder
}

func observeReports(r *reconciler) *observedReports {
	o := &observedReports{events: events.NewFakeRecorder(100)}
	r.events = o.events
	r.opts.Report = func(_ context.Context, _ client.Object, status installation.Status) error {
		o.statuses = append(o.statuses, status)
		return nil
	}

	return o
}

func (o *observedReports) last() installation.Status {
	if len(o.statuses) == 0 {
		return installation.Status{}
	}
	return o.statuses[len(o.statuses)-1]
}

func TestFailuresAreReported(t *testing.T) {
	t.Parallel()

	terminal := reconcile.TerminalError(nil)
	errAgain := errors.New("any other")
	identity := func(identity Identity, err error) func(*reconciler) {
		return func(r *reconciler) {
			r.identify = func(context.Context, client.Object) (Identity, error) { return identity, err }
		}
	}

	connection := func(c client.Client, err error) func(*reconciler) {
		return func(r *reconciler) {
			r.certificates = ready{}
			r.connect = func(context.Context, client.Object) (client.Client, error) { return c, err }
		}
	}

	tests := map[string]struct {
		change  func(r *reconciler)
		reason  string
		message string // a part of it
		err     error
	}{
		"no domain":     {identity(Identity{ID: prod}, nil), "InvalidRuntime", "", terminal},
		"no identity":   {identity(Identity{}, errors.New("no such thing")), "IdentityUnknown", "no such thing", errAgain},
		"out of reach":  {connection(nil, errors.New("no route")), "Unreachable", "no route", errAgain},
		"a kubeconfig":  {connection(nil, remote.ErrInvalidKubeconfig), "InvalidKubeconfig", "", errAgain},
		"a Secret":      {connection(fake.NewClientBuilder().Build(), nil), "InvalidSecret", "", errAgain},
		"a certificate": {func(r *reconciler) { r.certificates = refused{} }, "CertificateFailed", "denied", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := newObject(string(prod))
			r := newReconciler(t, newPlane(t, object), nil)
			test.change(r)
			reports := observeReports(r)

			for range 3 {
				err := reconcileOnce(t, r, object)
				if (err == nil) != (test.err == nil) || errors.Is(err, terminal) != errors.Is(test.err, terminal) {
					t.Errorf("error %v, want one as %v", err, test.err)
				}
			}

			have := reports.last()
			if have.State != installation.Failed || string(have.Reason) != test.reason || have.Message == "" ||
				!strings.Contains(have.Message, test.message) {
				t.Errorf("reported %+v, want the reason %s and %q", have, test.reason, test.message)
			}
			if have := len(reports.events.Events); have != 1 {
				t.Errorf("%d Events for three failures of one kind, want 1", have)
			}
		})
	}
}

// The label with the ID was removed, so that the agent gets no new certificate.
func TestARuntimeThatLosesItsIDIsReported(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	object.Finalizers = []string{names.Names{}.WithDefaults().Finalizer}
	r := newReconciler(t, newPlane(t, object), outOfReach)
	r.identify = func(context.Context, client.Object) (Identity, error) { return Identity{}, nil }
	reports := observeReports(r)
	if err := reconcileOnce(t, r, object); err == nil || reports.last().Reason != ReasonIdentityUnknown {
		t.Errorf("%+v, %v, want the reason IdentityUnknown", reports.last(), err)
	}
}

// Another set has a Certificate of that name. No event reports its later removal.
func TestACertificateOfAnotherSetIsWaitedFor(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	other := issued()
	other.Labels["operator.kyma-project.io/certificates"] = "former"
	r := newReconciler(t, newPlane(t, object, other), outOfReach)
	if result, err := r.lanes.Regular.Reconcile(t.Context(), requestOf(object)); err != nil || result.RequeueAfter == 0 {
		t.Errorf("%+v, %v, want another attempt", result, err)
	}
}

// An API server chooses the text of its errors. A condition has at most 32,768 bytes.
func TestTextsOfARuntimeAreBounded(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	r := newReconciler(t, newPlane(t, object), nil)
	r.certificates = ready{}
	r.connect = func(context.Context, client.Object) (client.Client, error) {
		return nil, errors.New(strings.Repeat("\u00e4", 1<<20))
	}

	reports := observeReports(r)
	err := reconcileOnce(t, r, object)
	if err == nil || len(err.Error()) > 5000 {
		t.Errorf("the error to log has %d bytes", len(err.Error()))
	}
	if have := reports.last().Message; len(have) > 5000 || !utf8.ValidString(have) || !strings.Contains(have, "connect") {
		t.Errorf("the message has %d bytes: %.40s", len(have), have)
	}

	stalled := installation.Status{State: installation.Failed, Reason: "Any", Message: strings.Repeat("a", 1<<20)}
	check(t, attemptOf(r, object, prod).reportStatus(t.Context(), stalled))
	if have := reports.last().Message; len(have) > 5000 {
		t.Errorf("the message of a Deployment has %d bytes", len(have))
	}
}

// refused is an issuer. cert-manager has denied its requests.
type refused struct{ Certificates }

func (refused) EnsureRuntime(context.Context, certificates.Runtime) (certificates.RuntimeStatus, error) {
	return certificates.RuntimeStatus{Reason: "Failed", Message: "the request was denied"}, nil
}

// ready has issued certificates that no installation accepts.
type ready struct{ Certificates }

func (ready) EnsureRuntime(context.Context, certificates.Runtime) (certificates.RuntimeStatus, error) {
	return certificates.RuntimeStatus{Ready: true}, nil
}

// Two objects represent the same runtime. The second one is refused, and its deletion leaves agent
// and certificates alone.
func TestASecondObjectOfARuntimeIsRefused(t *testing.T) {
	t.Parallel()

	first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: string(prod), UID: "first"}}
	second := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: string(prod), UID: "second"}}
	c := newPlane(t, first, second)
	connected := 0
	r := newReconciler(t, c, func(context.Context, client.Object) (client.Client, error) {
		connected++
		return nil, errors.New("want no connection")
	})

	f := newTestFleet(t)
	f.beat("e", "a")
	r.opts.Fleet = f.Fleet
	reports := observeReports(r)
	check(t, reconcileOnce(t, r, first))

	if err := reconcileOnce(t, r, second); err != nil || reports.last().Reason != "RuntimeTaken" {
		t.Errorf("the second object: %+v, %v, want the reason RuntimeTaken", reports.last(), err)
	}

	check(t, errors.Join(c.Delete(t.Context(), second), reconcileOnce(t, r, second)))
	wantGone(t, c, second)
	certificate := &certv1.Certificate{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "kcp", Name: string(prod) + "-watcher-tls"},
		certificate); err != nil {
		t.Error("the certificate of the first object:", err)
	}

	if connected > 0 {
		t.Errorf("%d connections to the runtime of the first object", connected)
	}

	f.wantKnown("a")
}

// issued is the certificate of the runtime that deleted represents.
func issued() *certv1.Certificate {
	return &certv1.Certificate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kcp", Name: string(prod) + "-watcher-tls",
			Labels: map[string]string{"operator.kyma-project.io/certificates": "watcher"},
		},
		Spec: certv1.CertificateSpec{CommonName: string(prod)},
	}
}

// deleted is an object that represents a runtime, and was deleted that long ago.
func deleted(ago time.Duration) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "kcp", Name: string(prod), UID: "object", Finalizers: []string{names.Names{}.WithDefaults().Finalizer},
		DeletionTimestamp: &metav1.Time{Time: time.Now().Add(-ago)},
	}}
}

// newPlane is a control plane where, as with a real one, no request succeeds after its context has
// ended.
func newPlane(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()

	scheme := runtime.NewScheme()
	check(t, errors.Join(corev1.AddToScheme(scheme), v1beta2.AddToScheme(scheme),
		certv1.AddToScheme(scheme)))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch,
			opts ...client.PatchOption,
		) error {
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
func newReconciler(t *testing.T, c client.Client, connect func(context.Context, client.Object) (client.Client, error)) *reconciler {
	t.Helper()

	set, err := certificates.New(c, certificates.Parts{
		Name:        types.NamespacedName{Namespace: "kcp", Name: "watcher"},
		DNSNames:    []string{"listener.example.com"},
		Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
	}, certificates.Options{})
	check(t, err)
	installer, err := installation.New(installation.Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, installation.Options{})
	check(t, err)
	opts := Options{}.withDefaults()
	r := &reconciler{
		names:  names.Names{}.WithDefaults(),
		events: &events.FakeRecorder{}, book: opts.Overview.newBook(),
		client: c, watchers: c, secrets: c, shared: cache.NewExpiring(), prototype: &corev1.ConfigMap{}, gvk: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		identify: func(_ context.Context, object client.Object) (Identity, error) {
			return Identity{ID: core.RuntimeID(object.GetName()), Domain: "a.example.com"}, nil
		},
		connect: connect, certificates: set, installer: installer, opts: opts,
	}

	r.lanes = r.newLanes()
	return r
}

// attemptOf is a reconcile that has identified the runtime of an object.
func attemptOf(r *reconciler, object client.Object, id core.RuntimeID) *attempt {
	return &attempt{reconciler: r, object: object, key: client.ObjectKeyFromObject(object), id: id}
}

func reconcileOnce(t *testing.T, r *reconciler, object client.Object) error {
	t.Helper()

	_, err := r.lanes.Regular.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	return err
}

func wantGone(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
		t.Errorf("%T %s is still there: %v", object, object.GetName(), err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
