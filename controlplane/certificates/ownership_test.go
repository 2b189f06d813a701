package certificates

import (
	"strings"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// callsOf returns the two calls that may meet an object of others.
func callsOf(t *testing.T) (ensure, reconcile func(*Certificates) error) {
	t.Helper()

	ensure = func(set *Certificates) error {
		_, err := set.EnsureRuntime(t.Context(), Runtime{ID: "prod", Domain: "prod.example.com"})
		return err
	}

	reconcile = func(set *Certificates) error {
		_, err := set.Reconcile(t.Context())
		return err
	}

	return ensure, reconcile
}

// Others have an object with each name that a set uses, one at a time. Nothing of it changes, and
// the error has its kind and name.
func TestObjectsOfOthersStayAsTheyAre(t *testing.T) {
	t.Parallel()

	names := objectNames{set: "watcher"}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "kcp", Name: name, Labels: map[string]string{"app": "shop"}}
	}

	issuer := func(name string) client.Object {
		return &certv1.Issuer{ObjectMeta: meta(name), Spec: certv1.IssuerSpec{IssuerConfig: certv1.IssuerConfig{
			CA: &certv1.CAIssuer{SecretName: "shop"},
		}}}
	}

	secret := func(name string) client.Object {
		return &corev1.Secret{ObjectMeta: meta(name), Data: map[string][]byte{"password": []byte("p")}}
	}

	certificate := func(name string) client.Object {
		return &certv1.Certificate{ObjectMeta: meta(name), Spec: certv1.CertificateSpec{CommonName: "shop", SecretName: "shop"}}
	}

	ensure, reconcile := callsOf(t)
	for want, row := range map[string]struct {
		foreign client.Object
		call    func(*Certificates) error
	}{
		"Issuer kcp/watcher-selfsigned": {issuer(names.selfSigned()), reconcile},
		"Certificate kcp/watcher-ca-1":  {certificate(names.authorityName(1)), reconcile},
		"Secret kcp/watcher-ca-1":       {secret(names.authorityName(1)), reconcile},
		"kcp/watcher-listener":          {secret(names.listener()), reconcile},
		"Secret kcp/prod-watcher-tls":   {secret("prod-watcher-tls"), ensure},
		"Secret kcp/prod-webhook-tls":   {secret("prod-webhook-tls"), ensure},
		"Certificate kcp/prod-webhook-": {certificate("prod-webhook-tls"), ensure},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()

			scheme := runtime.NewScheme()
			check(t, corev1.AddToScheme(scheme))
			check(t, certv1.AddToScheme(scheme))
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(row.foreign).Build()
			set, err := New(c, Parts{
				Name:        types.NamespacedName{Namespace: "kcp", Name: "watcher"},
				DNSNames:    []string{"listener.example.com"},
				Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
			}, Options{})

			check(t, err)
			key := client.ObjectKeyFromObject(row.foreign)
			before := readAgain(t, c, row.foreign, key)

			if err := row.call(set); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %s", err, want)
			}

			check(t, set.RemoveRuntime(t.Context(), Runtime{ID: "prod"}))
			if diff := cmp.Diff(before, readAgain(t, c, row.foreign, key)); diff != "" {
				t.Errorf("the object of others (-before +after):\n%s", diff)
			}
		})
	}
}

// readAgain reads an object of the same type again.
func readAgain(t *testing.T, c client.Client, of client.Object, key client.ObjectKey) client.Object {
	t.Helper()

	live, _ := of.DeepCopyObject().(client.Object)
	check(t, c.Get(t.Context(), key, live))
	return live
}

// Another client copies objects of a set to other names in the namespace, with all labels, as a
// backup tool does. A copy is neither used nor counted nor deleted. The control is a Secret that
// has lost its Certificate.
func TestCopiesStayAsTheyAre(t *testing.T) {
	t.Parallel()

	names := objectNames{set: "watcher"}
	meta := func(name, role, generation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: "kcp", Name: name, UID: types.UID("uid of " + name), Annotations: map[string]string{},
			Labels: map[string]string{
				stored(labelSet): names.set, stored(labelRole): role, stored(labelGeneration): generation,
			},
		}
	}

	// A Secret is of a Certificate with the name original, which "" leaves out.
	secret := func(name, role, original, commonName string) client.Object {
		ca, err := testpki.NewCA(commonName, testpki.Options{})
		check(t, err)
		object := &corev1.Secret{ObjectMeta: meta(name, role, "1"), Data: map[string][]byte{"tls.crt": ca.PEM}}

		if original != "" {
			object.Annotations[certv1.CertificateNameKey] = original
		}

		return object
	}

	imported := func(name, generation string) client.Object {
		object := secret(name, roleCA, "", "of the customer")
		object.GetLabels()[stored(labelGeneration)] = generation
		object.GetAnnotations()[stored(annotationRequest)] = ""

		return object
	}

	certificate := func(name, role, id string) client.Object {
		object := &certv1.Certificate{ObjectMeta: meta(name, role, "1"), Spec: certv1.CertificateSpec{SecretName: name}}
		if id != "" {
			object.Annotations[stored(annotationRuntime)] = id
		}

		return object
	}

	const sign, former = "watcher-ca-1", "gone-watcher-tls"
	for name, foreign := range map[string]client.Object{
		"Secret of a CA":                           secret("backup", roleCA, sign, sign),
		"Secret of a CA without annotation":        secret("backup", roleCA, "", sign),
		"Secret of a CA, with a name of the set":   secret("watcher-ca-7", roleCA, "", sign),
		"Secret of an imported CA":                 imported("backup", "1"),
		"Secret of an imported CA as another one":  imported("watcher-ca-7", "1"),
		"Secret of an imported CA, other number":   imported("watcher-ca-01", "1"),
		"Secret of a runtime":                      secret("backup", roleClient, "prod-watcher-tls", "prod"),
		"Secret of a runtime, our suffix":          secret("backup-watcher-tls", roleClient, "prod-watcher-tls", "prod"),
		"Secret of a runtime, without annotation":  secret("backup-watcher-tls", roleClient, "", "prod"),
		"Secret of a webhook":                      secret("backup", roleWebhook, "prod-webhook-tls", "prod"),
		"Secret of a webhook, without annotation":  secret("backup-webhook-tls", roleWebhook, "", ""),
		"Secret of a webhook, of another role":     secret("prod-watcher-tls", roleWebhook, "", "prod"),
		"Secret with a role that this set has not": secret("prod-watcher-tls", "backup", "", "prod"),
		"Certificate of a CA":                      certificate("backup", roleCA, ""),
		"Certificate of a CA, other generation":    certificate("watcher-ca-2", roleCA, ""),
		"Certificate of a runtime":                 certificate("backup", roleClient, "prod"),
		"Certificate of a runtime, our suffix":     certificate("backup-watcher-tls", roleClient, "prod"),
		"Certificate of a runtime, other role":     certificate("prod-watcher-tls", roleWebhook, "prod"),
		"Certificate of a webhook, our suffix":     certificate("backup-webhook-tls", roleWebhook, "prod"),
		"Certificate of the server":                certificate("backup", roleServer, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			copied, _ := foreign.DeepCopyObject().(client.Object)
			c := newPlane(t, new([]types.UID), copied, imported(sign, "1"), secret(former, roleClient, former, "gone"))
			set := newSet(t, c, names.set)
			before := readAgain(t, c, foreign, client.ObjectKeyFromObject(foreign))
			seen, err := set.observe(t.Context())
			check(t, err)

			if len(seen.runtimes) != 0 || len(seen.authorities) != 1 || seen.objects[1].GetName() != sign || seen.server.name != "" {
				t.Errorf("%d runtimes, %d authorities, the first is %s, the server is %q: want no runtime, only %s and no server",
					len(seen.runtimes), len(seen.authorities), seen.objects[1].GetName(), seen.server.name, sign)
			}

			check(t, set.deleteOrphans(t.Context(), seen))
			left := &corev1.Secret{}
			if err := c.Get(t.Context(), set.keyOf(former), left); !apierrors.IsNotFound(err) {
				t.Errorf("the control: got %v, want that the Secret without Certificate is deleted", err)
			}
			if diff := cmp.Diff(before, readAgain(t, c, foreign, client.ObjectKeyFromObject(foreign))); diff != "" {
				t.Errorf("the copy (-before +after):\n%s", diff)
			}
		})
	}
}

// A copy has a name that the set needs. It is an object of others there, as one without labels.
func TestACopyWithANameOfTheSetIsRefused(t *testing.T) {
	t.Parallel()

	label := func(role, generation string) map[string]string {
		return map[string]string{stored(labelSet): "watcher", stored(labelRole): role, stored(labelGeneration): generation}
	}

	meta := func(name, role, generation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "kcp", Name: name, Labels: label(role, generation)}
	}

	annotated := meta("prod-watcher-tls", roleClient, "")
	annotated.Annotations = map[string]string{certv1.CertificateNameKey: "test-watcher-tls"}

	ensure, reconcile := callsOf(t)
	for name, row := range map[string]struct {
		foreign client.Object
		call    func(*Certificates) error
	}{
		"a Certificate of another generation": {&certv1.Certificate{ObjectMeta: meta("watcher-ca-1", roleCA, "4")}, reconcile},
		"a Secret of another generation":      {&corev1.Secret{ObjectMeta: meta("watcher-ca-1", roleCA, "4")}, reconcile},
		"a Secret of another role":            {&corev1.Secret{ObjectMeta: meta("prod-webhook-tls", roleClient, "")}, ensure},
		"a Secret of another Certificate":     {&corev1.Secret{ObjectMeta: annotated}, ensure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c := newPlane(t, new([]types.UID), row.foreign)
			set := newSet(t, c, "watcher")
			key := client.ObjectKeyFromObject(row.foreign)
			before := readAgain(t, c, row.foreign, key)

			if err := row.call(set); err == nil || !strings.Contains(err.Error(), key.Name) || !strings.Contains(err.Error(), "copy") {
				t.Errorf("error %v, want one about a copy with the name %s", err, key.Name)
			}
			if diff := cmp.Diff(before, readAgain(t, c, row.foreign, key)); diff != "" {
				t.Errorf("the copy (-before +after):\n%s", diff)
			}
		})
	}
}

// Another client takes over a Secret, by its labels, between the read and the deletion.
func TestASecretThatChangesOwnerIsNotSwept(t *testing.T) {
	t.Parallel()

	former := keyOf("watcher")
	former.SetAnnotations(map[string]string{certv1.CertificateNameKey: former.GetName()})

	for name, isTaken := range map[string]bool{"taken over": true, "the control": false} {
		object, _ := former.DeepCopyObject().(client.Object)
		c := newPlane(t, new([]types.UID), object)
		set := newSet(t, c, "watcher")
		seen, err := set.observe(t.Context())
		check(t, err)
		seen.authorities = make([]authority, 1)

		if isTaken {
			taken := readAgain(t, c, former, client.ObjectKeyFromObject(former))
			taken.SetLabels(map[string]string{"app": "shop"})
			check(t, c.Update(t.Context(), taken))
		}

		check(t, set.deleteOrphans(t.Context(), seen))
		err = c.Get(t.Context(), client.ObjectKeyFromObject(former), &corev1.Secret{})
		if isKept := err == nil; isKept != isTaken {
			t.Errorf("%s: %v, want it kept: %t", name, err, isTaken)
		}
	}
}
