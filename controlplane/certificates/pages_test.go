package certificates

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// paged answers lists of Certificates in pages, as API servers do and the fake client does not.
func paged(all []certv1.Certificate, fails func(next string) error) interceptor.Funcs {
	return interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
	) error {
		certificates, ok := list.(*certv1.CertificateList)
		if !ok {
			return c.List(ctx, list, opts...)
		}

		asked := (&client.ListOptions{}).ApplyOptions(opts)
		if err := fails(asked.Continue); err != nil {
			return err
		}

		first, _ := strconv.Atoi(asked.Continue)
		last := len(all)
		if asked.Limit > 0 && first+int(asked.Limit) < last {
			last = first + int(asked.Limit)
			list.SetContinue(strconv.Itoa(last))
		}

		certificates.Items = all[first:last]
		return nil
	}}
}

func TestALookReadsPages(t *testing.T) {
	t.Parallel()

	all := make([]certv1.Certificate, 3*pageSize+1)
	for n := range all {
		id := core.RuntimeID(fmt.Sprintf("runtime-%d", n))
		all[n].ObjectMeta = made("watcher")
		all[n].Name = objectName(id, clientSuffix)
		all[n].Spec.CommonName = string(id)
	}

	for name, fails := range map[string]func(next string) error{
		"all":     func(string) error { return nil },
		"expired": func(next string) error { return errorIf(next == "1000") },
		"a cache": func(next string) error { return errorIf(next != "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var none []types.UID
			set := newSet(t, interceptor.NewClient(newPlane(t, &none), paged(all, fails)), "watcher")
			seen, err := set.observe(t.Context())
			if err != nil || len(seen.runtimes) != len(all) {
				t.Fatalf("%d runtimes, %v, want %d", len(seen.runtimes), err, len(all))
			}
		})
	}
}

// A certificate with the subject of its CA has no identifier of the CA's key.
func TestAServerMayHaveTheNameOfItsCA(t *testing.T) {
	t.Parallel()

	const name = "listener.example.com"
	ca, err := testpki.NewCA(name, testpki.Options{})
	check(t, err)
	issued, err := ca.Server(name, testpki.Options{})
	check(t, err)
	set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
	key := &corev1.Secret{ObjectMeta: set.metaOf("watcher-ca-1")}
	server := &corev1.Secret{ObjectMeta: set.metaOf("watcher-server")}
	key.Labels[stored(labelRole)] = roleCA
	key.Labels[stored(labelGeneration)] = "1"
	key.Annotations = map[string]string{stored(annotationImported): "default/today", stored(annotationRequest): ""}
	key.Data = map[string][]byte{"tls.crt": ca.PEM}
	server.Data = testpki.Files(issued)

	signers := []client.Object{set.signingIssuer(set.names.clients(), 1), set.signingIssuer(set.names.servers(), 1)}
	for _, object := range append(signers, key, server, set.serverCertificate()) {
		check(t, set.client.Create(t.Context(), object))
	}

	if status, err := set.Reconcile(t.Context()); err != nil || status.Phase != PhaseStable {
		t.Errorf("%s, %v, want that nothing is issued anew", status.Phase, err)
	}
}

func errorIf(condition bool) error {
	if condition {
		return errors.New("cannot continue")
	}
	return nil
}

// A key ends with its Certificate, also that of a retired CA. It stays while there is no CA.
func TestKeysWithoutCertificateAreSwept(t *testing.T) {
	t.Parallel()

	secret := func(name, set, role, annotation string) client.Object {
		object := keyOf(set)
		object.SetName(name)
		object.SetUID(types.UID(name))
		object.SetLabels(map[string]string{stored(labelSet): set, stored(labelRole): role, stored(labelGeneration): "1"})
		object.SetAnnotations(map[string]string{annotation: name})

		return object
	}

	issued := func(name, set, role string) client.Object {
		return secret(name, set, role, certv1.CertificateNameKey)
	}

	const generation = "2"
	names := objectNames{set: "watcher"}
	ca := &certv1.Certificate{ObjectMeta: made("watcher"), Spec: certv1.CertificateSpec{SecretName: names.authorityName(2)}}
	ca.Name = names.authorityName(2)
	ca.Labels = map[string]string{
		stored(labelSet): "watcher", stored(labelRole): roleCA, stored(labelGeneration): generation,
	}

	ofCA := issued(names.authorityName(2), "watcher", roleCA)
	ofCA.GetLabels()[stored(labelGeneration)] = generation
	imported := secret(names.authorityName(3), "watcher", roleCA, stored(annotationRequest))
	imported.GetLabels()[stored(labelGeneration)] = "3"
	kept := &certv1.Certificate{ObjectMeta: made("watcher"), Spec: certv1.CertificateSpec{SecretName: made("watcher").Name}}
	taken := &certv1.Certificate{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "taken-watcher-tls"}}
	there := []client.Object{
		ofCA, issued(names.authorityName(1), "watcher", roleCA), imported,
		issued(names.server(), "watcher", roleServer), secret(names.listener(), "watcher", "", ""),
		issued("other-watcher-tls", "another", roleClient),
		kept, keyOf("watcher"), issued("left-watcher-tls", "watcher", roleClient),
		issued("left-webhook-tls", "watcher", roleWebhook),
		taken, issued("taken-watcher-tls", "watcher", roleClient), // Its Certificate has lost our labels.
	}

	for name, want := range map[string][]types.UID{"no CA": nil, "a CA": {"left-watcher-tls", "left-webhook-tls", "watcher-ca-1"}} {
		var deleted []types.UID
		set := newSet(t, newPlane(t, &deleted, there...), "watcher")

		if want != nil {
			check(t, set.client.Create(t.Context(), ca.DeepCopy()))
		}

		seen, err := set.observe(t.Context())
		check(t, errors.Join(err, set.deleteOrphans(t.Context(), seen)))
		slices.Sort(deleted)

		if !slices.Equal(deleted, want) {
			t.Errorf("with %s: deleted %q, want %q", name, deleted, want)
		}
	}
}

// An unchanged runtime costs reads alone.
func TestAnUnchangedCertificateIsNotWritten(t *testing.T) {
	t.Parallel()

	var (
		none   []types.UID
		writes int
	)

	c := interceptor.NewClient(newPlane(t, &none), interceptor.Funcs{Apply: func(
		ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption,
	) error {
		writes++
		return c.Apply(ctx, object, opts...)
	}})

	set := newSet(t, c, "watcher")
	r := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("kcp", "owner")}
	ensure := func() int {
		writes = 0
		if _, err := set.EnsureRuntime(t.Context(), r); err != nil {
			t.Fatal(err)
		}

		return writes
	}

	ensure()
	if n := ensure(); n != 0 {
		t.Errorf("%d writes of what is unchanged", n)
	}

	edited := &certv1.Certificate{}
	for name, edit := range map[string]func(){
		"Common Name": func() { edited.Spec.CommonName = "another" },
		"life":        func() { edited.Spec.Duration.Duration++ },
		"label":       func() { delete(edited.Labels, stored(labelRole)) },
		"owner":       func() { edited.OwnerReferences = nil },
		"DNS names":   func() { edited.Spec.DNSNames = append(edited.Spec.DNSNames, "another.example.com") },
		"usages":      func() { edited.Spec.Usages = append(edited.Spec.Usages, certv1.UsageServerAuth) },
	} {
		check(t, c.Get(t.Context(), set.keyOf(objectName(shared, clientSuffix)), edited))
		edit()
		edited.Labels["of another"] = "kept"
		edited.Status.Revision = new(2)
		edited.Generation++ // As an API server does.
		check(t, c.Update(t.Context(), edited))

		if first, second := ensure(), ensure(); first != 1 || second != 0 {
			t.Errorf("%d and %d writes after another has changed its %s, want 1 and none", first, second, name)
		}
	}

	r.Domain = "b.example.com"
	if n := ensure(); n != 1 {
		t.Errorf("%d writes for another domain, want 1", n)
	}
}

func TestKeysAndNames(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts Options
		want bool
	}{
		"default":         {Options{}, true},
		"today's":         {Options{KeyAlgorithm: certv1.RSAKeyAlgorithm, KeySize: 4096}, true},
		"RSA":             {Options{KeyAlgorithm: certv1.RSAKeyAlgorithm}, true},
		"Ed25519":         {Options{KeyAlgorithm: certv1.Ed25519KeyAlgorithm}, true},
		"a size":          {Options{KeySize: 384}, true},
		"too small":       {Options{KeyAlgorithm: certv1.RSAKeyAlgorithm, KeySize: 1024}, false},
		"unknown":         {Options{KeyAlgorithm: "DSA"}, false},
		"a Service":       {Options{Service: "agent", RuntimeNamespace: "kyma-system"}, true},
		"the server's":    {Options{Service: "listener", RuntimeNamespace: "example.com"}, false},
		"a long life":     {Options{Duration: 120 * day}, true},
		"a longer one":    {Options{Duration: 121 * day}, false},
		"a short CA":      {Options{CADuration: 90 * day, Duration: 30 * day, RenewBefore: day}, true},
		"a shorter one":   {Options{CADuration: 89 * day, Duration: 30 * day, RenewBefore: day}, false},
		"size of another": {Options{KeyAlgorithm: certv1.ECDSAKeyAlgorithm, KeySize: 2048}, false},
	} {
		opts := test.opts.withDefaults()
		err := opts.validate([]string{"listener.example.com"})
		if (err == nil) != test.want {
			t.Errorf("%s: got %v, want it accepted: %t", name, err, test.want)
		}
	}
}
