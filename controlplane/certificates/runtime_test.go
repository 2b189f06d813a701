package certificates

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

const shared core.RuntimeID = "prod"

// stored returns the label or annotation of a word.
func stored(word string) string { return names.Names{}.Key(word) }

func made(set string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "kcp", Name: objectName(shared, clientSuffix), UID: types.UID("of " + set),
		Labels: map[string]string{stored(labelSet): set, stored(labelRole): roleClient},
	}
}

func certificateFor(set string, id core.RuntimeID) client.Object {
	return &certv1.Certificate{ObjectMeta: made(set), Spec: certv1.CertificateSpec{CommonName: string(id)}}
}

func keyOf(set string) client.Object { return &corev1.Secret{ObjectMeta: made(set)} }

// Two sets in one namespace have the same names for the certificates of a runtime.
func TestRemoveRuntimeLeavesAloneWhatIsNotItsOwn(t *testing.T) {
	const mine, foreign = "watcher", "another"
	tests := map[string]struct{ there, left []client.Object }{
		"nothing":                     {},
		"its own":                     {there: []client.Object{certificateFor(mine, shared), keyOf(mine)}},
		"a key after an interruption": {there: []client.Object{keyOf(mine)}},
		"no key yet":                  {there: []client.Object{certificateFor(mine, shared)}},
		"of another set": {
			[]client.Object{certificateFor(foreign, shared), keyOf(foreign)},
			[]client.Object{certificateFor(foreign, shared), keyOf(foreign)},
		},
		"a key of another set": {[]client.Object{keyOf(foreign)}, []client.Object{keyOf(foreign)}},
		"for another runtime": {
			[]client.Object{certificateFor(mine, "a"), keyOf(mine)},
			[]client.Object{certificateFor(mine, "a"), keyOf(mine)},
		},
		"a key that was replaced": {
			[]client.Object{certificateFor(mine, shared), keyOf(foreign)},
			[]client.Object{keyOf(foreign)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var deleted []types.UID
			c := newPlane(t, &deleted, test.there...)
			check(t, newSet(t, c, mine).RemoveRuntime(t.Context(), Runtime{ID: shared}))

			for _, object := range test.there {
				left := slices.ContainsFunc(test.left, func(l client.Object) bool {
					return l.GetUID() == object.GetUID() &&
						reflect.TypeOf(l) == reflect.TypeOf(object)
				})

				err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				if client.IgnoreNotFound(err) != nil || left != (err == nil) {
					t.Errorf("%T %s: %v, want it left: %t", object, object.GetUID(), err, left)
				}
			}

			if want := len(test.there) - len(test.left); len(deleted) != want || slices.Contains(deleted, "") {
				t.Errorf("deleted by UID: %q, want %d", deleted, want)
			}
		})
	}
}

// A runtime with an invalid ID never had a certificate.
func TestRemoveRuntimeThatCouldNeverHaveACertificate(t *testing.T) {
	t.Parallel()

	set := newSet(t, interceptor.NewClient(newPlane(t, new([]types.UID)), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("want no look")
		},
	}), "watcher")
	for _, id := range []core.RuntimeID{"", "a\nb", core.RuntimeID(strings.Repeat("x", maxCommonName+1))} {
		if err := set.RemoveRuntime(t.Context(), Runtime{ID: id}); err != nil {
			t.Errorf("%.8q: %v", id, err)
		}
	}

	if err := set.RemoveRuntime(t.Context(), Runtime{ID: shared}); err == nil {
		t.Error("a runtime that could not be looked for is said to be removed")
	}
}

// What the client's scheme does not know says its kind itself.
func TestACertificateGoesWithItsOwnerWhereItCan(t *testing.T) {
	t.Parallel()

	stub := func(namespace string) client.Object {
		owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kyma", UID: "u"}}
		owner.SetGroupVersionKind(schema.GroupVersionKind{
			Group: "operator.kyma-project.io", Version: "v1beta2",
			Kind: "Kyma",
		})

		return owner
	}

	kyma := []metav1.OwnerReference{{APIVersion: "operator.kyma-project.io/v1beta2", Kind: "Kyma", Name: "kyma", UID: "u"}}
	tests := map[string]struct {
		owner client.Object
		want  []metav1.OwnerReference
	}{
		"none":           {},
		"beside it":      {stub("kcp"), kyma},
		"cluster-scoped": {stub(""), kyma},
		"elsewhere":      {owner: stub("default")},
		"known to the scheme": {
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "a", UID: "u"}},
			[]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "u"}},
		},
	}
	for name, test := range tests {
		r := Runtime{ID: shared, Domain: "a.example.com", Owner: test.owner}
		set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
		certificate := set.clientCertificate(r)
		if err := set.setOwner(certificate, r); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		if diff := cmp.Diff(test.want, certificate.OwnerReferences); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// newPlane is a control plane that notes by which UID something is deleted there, empty for none.
func newPlane(t *testing.T, deleted *[]types.UID, objects ...client.Object) client.WithWatch {
	t.Helper()

	scheme := runtime.NewScheme()
	check(t, errors.Join(corev1.AddToScheme(scheme), certv1.AddToScheme(scheme)))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			options := (&client.DeleteOptions{}).ApplyOptions(opts)
			var uid types.UID
			if p := options.Preconditions; p != nil && p.UID != nil {
				uid = *p.UID
			}

			*deleted = append(*deleted, uid)
			return c.Delete(ctx, object, opts...)
		},
	}).Build()
}

func newSet(t *testing.T, c client.Client, name string) *Certificates {
	t.Helper()

	set, err := New(c, Parts{
		Name:        types.NamespacedName{Namespace: "kcp", Name: name},
		DNSNames:    []string{"listener.example.com"},
		Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
	}, Options{})

	check(t, err)
	return set
}

func kyma(namespace string, uid types.UID) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kyma", UID: uid}}
}

// Two objects in two namespaces have the same runtime ID. The second one gets no key, and deletes
// none.
func TestARuntimeBelongsToOneObject(t *testing.T) {
	t.Parallel()

	var deleted []types.UID
	c := newPlane(t, &deleted)
	set := newSet(t, c, "watcher")
	first := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "first")}
	second := Runtime{ID: shared, Domain: "b.example.com", Owner: kyma("two", "second")}

	if _, err := set.EnsureRuntime(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := set.EnsureRuntime(t.Context(), second); !errors.Is(err, errRuntimeTaken) {
		t.Errorf("the second object: %v, want %v", err, errRuntimeTaken)
	}
	if _, err := set.EnsureRuntime(t.Context(), Runtime{ID: shared, Domain: "b.example.com"}); !errors.Is(err,
		errRuntimeTaken) {
		t.Errorf("without owner: %v, want %v", err, errRuntimeTaken)
	}

	wantOwner(t, set, first, true)
	wantOwner(t, set, second, false)

	if err := set.RemoveRuntime(t.Context(), second); err != nil || len(deleted) > 0 {
		t.Errorf("the second object has deleted %v: %v", deleted, err)
	}

	certificate := &certv1.Certificate{}
	check(t, c.Get(t.Context(), set.keyOf(objectName(shared, clientSuffix)), certificate))
	if have := certificate.Spec.DNSNames; len(have) != 1 || have[0] != first.Domain {
		t.Errorf("the certificate is for %v, want the domain of the first object", have)
	}
	if err := set.RemoveRuntime(t.Context(), first); err != nil || len(deleted) != 2 {
		t.Errorf("the first object has deleted %v, want both certificates: %v", deleted, err)
	}

	wantOwner(t, set, second, true)
	if _, err := set.EnsureRuntime(t.Context(), second); err != nil {
		t.Errorf("the second object after the first one: %v", err)
	}
}

// An object that was created again, without a finalizer in between, must not be refused for ever.
func TestANamesakeTakesOver(t *testing.T) {
	t.Parallel()

	set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
	former := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "former")}
	next := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "next")}

	for _, r := range []Runtime{former, next} {
		if _, err := set.EnsureRuntime(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}

	wantOwner(t, set, next, true)
	wantOwner(t, set, former, false)
}

func wantOwner(t *testing.T, set *Certificates, r Runtime, want bool) {
	t.Helper()
	if owned, err := set.OwnsRuntime(t.Context(), r); err != nil || owned != want {
		t.Errorf("owned by %s: %t, want %t: %v", ownerName(r.Owner), owned, want, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An API server refuses a bundle with anything but certificates, and so do agents.
func TestOnlyCertificatesOfABundleArePublished(t *testing.T) {
	t.Parallel()

	ca, err := testpki.NewCA("ca", testpki.Options{})
	check(t, err)
	leaf, err := ca.Client(string(shared), testpki.Options{})
	check(t, err)
	old, err := testpki.NewCA("old", testpki.Options{NotAfter: time.Now().Add(-time.Minute)})
	check(t, err)
	sound := testpki.Bundle(ca)

	for name, added := range map[string]string{
		"nothing":        "",
		"a key":          "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
		"no certificate": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
		"an expired CA":  string(old.PEM),
	} {
		files := testpki.Files(leaf, ca)
		issued := &corev1.Secret{Data: files}
		listener := &corev1.Secret{ObjectMeta: made("watcher"), Data: map[string][]byte{
			"ca.crt": append(bytes.Clone(sound), added...), "tls.crt": files["tls.crt"], "tls.key": files["tls.key"],
		}}

		listener.Annotations = map[string]string{stored(annotationBundleSince): time.Unix(1e9, 0).UTC().Format(time.RFC3339Nano)}
		var none []types.UID
		set := newSet(t, newPlane(t, &none, listener), "watcher")
		set.opts.ListenerSecret = set.keyOf(listener.Name)
		p := &pair{secret: issued, wanted: &certv1.Certificate{Spec: certv1.CertificateSpec{
			CommonName: string(shared), Usages: []certv1.KeyUsage{certv1.UsageClientAuth},
		}}}

		status, err := set.runtimeStatus(t.Context(), Runtime{ID: shared}, p, p)
		if have := status.Secret["ca.crt"]; err != nil || !bytes.Equal(bytes.TrimSuffix(have, old.PEM), sound) {
			t.Errorf("%s: a runtime gets the bundle\n%s\n%v, want the certificate alone", name, have, err)
		}

		seen, err := set.observe(t.Context())
		check(t, err)
		if seen.published.current != (added == "") || !bytes.Equal(seen.wanted.Data["ca.crt"], sound) {
			t.Errorf("%s: the bundle is current: %t, and is to be\n%s", name, seen.published.current, seen.wanted.Data["ca.crt"])
		}

		seen.listener.Annotations[stored(annotationBundleSince)] = time.Now().Add(day).Format(time.RFC3339Nano)
		check(t, set.client.Update(t.Context(), seen.listener))
		if seen, err := set.observe(t.Context()); err != nil || seen.published.current || seen.published.since.After(seen.now) {
			t.Errorf("%s: a date in the future stays: %v", name, err)
		}
	}
}

// A rotation that waits for days is reconciled every two seconds.
func TestARotationThatWaitsIsLoggedAtABoundedPace(t *testing.T) {
	synctest.Test(t, testPace)
}

func testPace(t *testing.T) {
	t.Helper()

	var log bytes.Buffer
	set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
	set.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	status := Status{Phase: PhaseConfirming, Generation: 2}

	for i := range 1000 {
		status.Waiting = append(status.Waiting, core.RuntimeID("runtime-"+strconv.Itoa(i)))
	}

	for end := time.Now().Add(24 * time.Hour); time.Now().Before(end); time.Sleep(pollInterval) {
		status.Message = message(status)
		set.announceWaiting(t.Context(), &observed{}, status)
	}

	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 24 {
		t.Errorf("%d lines a day, want one an hour", len(lines))
	}
	if len(lines[0]) > 1000 || !strings.Contains(lines[0], "waiting=1000") || !strings.Contains(lines[0], "runtime-9") {
		t.Errorf("want the number and some of the runtimes: %.2000s", lines[0])
	}

	// A change is logged immediately, and not thousands of them.
	log.Reset()
	for n := range 900 {
		status.Waiting = status.Waiting[1:]
		status.Message = message(status)
		set.announceWaiting(t.Context(), &observed{}, status)
		time.Sleep(pollInterval)

		if lines := strings.Count(log.String(), "\n"); lines < min(n, 100) || lines > 101 {
			t.Fatalf("%d lines after %d changes, want one each, and at most about 100 an hour", lines, n+1)
		}
	}
}

// The first ten runtimes are named. The text says so only if there are more.
func TestTheListOfRuntimesIsCut(t *testing.T) {
	t.Parallel()

	var runtimes []core.RuntimeID

	for n := range named + 2 {
		if isCut := strings.Contains(list(runtimes), "…"); isCut != (n > named) {
			t.Errorf("a list of %d runtimes is cut: %t", n, isCut)
		}
		runtimes = append(runtimes, core.RuntimeID(strconv.Itoa(n)))
	}
}

// A rotation that waits is an event of the issuer of runtimes, if there are a recorder and an
// issuer.
func TestARotationThatWaitsIsAnEvent(t *testing.T) {
	t.Parallel()

	issuer := &certv1.Issuer{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "clients"}}
	for name, tt := range map[string]struct {
		recorder bool
		issuer   *certv1.Issuer
		want     int
	}{
		"both":        {true, issuer, 1},
		"no recorder": {false, issuer, 0},
		"no issuer":   {true, nil, 0},
	} {
		recorder := events.NewFakeRecorder(2)
		set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
		set.opts.Logger = slog.New(slog.DiscardHandler)

		if tt.recorder {
			set.opts.Recorder = recorder
		}

		status := Status{Phase: PhaseConfirming, Waiting: []core.RuntimeID{"a"}, Message: "it waits"}
		set.announceWaiting(t.Context(), &observed{clientsIssuer: tt.issuer}, status)

		if have := len(recorder.Events); have != tt.want {
			t.Errorf("%s: %d events, want %d", name, have, tt.want)
		}
	}
}

// slow is a control plane that waits for its first certificates, and takes its time for each list.
type slow struct {
	client.Client

	list time.Duration
}

func (s *slow) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if issuer, ok := object.(*certv1.Issuer); ok {
		issuer.Labels = map[string]string{stored(labelSet): "b"}
		issuer.Spec.CA = &certv1.CAIssuer{SecretName: objectNames{set: "b"}.authorityName(1)}
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, "")
}

func (s *slow) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	time.Sleep(s.list)
	if certificates, ok := list.(*certv1.CertificateList); ok {
		ca := certv1.Certificate{}
		ca.Name = objectNames{set: "b"}.authorityName(1)
		ca.Labels = map[string]string{stored(labelRole): roleCA, stored(labelGeneration): "1"}
		certificates.Items = append(certificates.Items, ca)
	}

	return nil
}

func (s *slow) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return nil
}

// With thousands of runtimes one reconcile takes seconds, and a rotation may wait for weeks.
func TestALookTakesATenthOfTheTimeAtMost(t *testing.T) {
	for list, want := range map[time.Duration]time.Duration{
		0: pollInterval, 10 * time.Millisecond: pollInterval, 2 * time.Second: 36 * time.Second, time.Minute: longestRequeue,
	} {
		synctest.Test(t, func(t *testing.T) {
			set, err := New(&slow{list: list}, Parts{
				Name:        types.NamespacedName{Namespace: "a", Name: "b"},
				DNSNames:    []string{"c"},
				Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
			}, Options{})

			check(t, err)
			if status, err := set.Reconcile(t.Context()); err != nil || status.RequeueAfter != want {
				t.Errorf("two lists of %v each: again in %v, want %v: %v", list, status.RequeueAfter, want, err)
			}
		})
	}
}
