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

// Others have an object with each name that a set uses, one at a time. Nothing of it changes, and the
// error has its kind and name.
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
	ensure := func(set *Certificates) error {
		_, err := set.EnsureRuntime(t.Context(), Runtime{ID: "prod", Domain: "prod.example.com"})
		return err
	}
	reconcile := func(set *Certificates) error {
		_, err := set.Reconcile(t.Context())
		return err
	}
	for want, row := range map[string]struct {
		foreign client.Object
		call    func(*Certificates) error
	}{
		"Issuer kcp/watcher-selfsigned": {issuer(names.selfSigned()), reconcile},
		"Certificate kcp/watcher-ca-1":  {certificate(names.authority(1)), reconcile},
		"Secret kcp/watcher-ca-1":       {secret(names.authority(1)), reconcile},
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

// A customer copies Secrets of cert-manager under other names, with all labels and annotations. A copy is
// neither used nor deleted. The control is a Secret that has lost its Certificate.
func TestCopiesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	ca, err := testpki.NewCA("watcher-ca-1", testpki.Options{})
	check(t, err)
	names := objectNames{set: "watcher"}
	meta := func(name, role, generation, original string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: "kcp", Name: name, UID: types.UID("uid of " + name),
			Labels: map[string]string{
				stored(labelSet): names.set, stored(labelRole): role, stored(labelGeneration): generation,
			},
			Annotations: map[string]string{certv1.CertificateNameKey: original},
		}
	}
	secret := func(name, role, original string) client.Object {
		return &corev1.Secret{ObjectMeta: meta(name, role, "1", original), Data: map[string][]byte{"tls.crt": ca.PEM}}
	}
	imported := func(name string) client.Object {
		object := secret(name, roleCA, "")
		object.GetAnnotations()[stored(annotationRequest)] = ""
		return object
	}
	const sign, former = "watcher-ca-1", "gone-watcher-tls"
	for name, foreign := range map[string]client.Object{
		"Secret of a CA":                       secret("backup", roleCA, sign),
		"Secret of a runtime":                  secret("backup", roleClient, "prod-watcher-tls"),
		"Secret of a runtime, with our suffix": secret("backup-watcher-tls", roleClient, "prod-watcher-tls"),
		"Secret of a webhook":                  secret("backup", roleWebhook, "prod-webhook-tls"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPlane(t, new([]types.UID), foreign.DeepCopyObject().(client.Object), imported(sign), secret(former, roleClient, former))
			set := newSet(t, c, names.set)
			before := readAgain(t, c, foreign, client.ObjectKeyFromObject(foreign))
			seen, err := set.observe(t.Context())
			check(t, err)
			if len(seen.runtimes) != 0 || len(seen.authorities) != 1 || seen.objects[1].GetName() != sign {
				t.Errorf("%d runtimes, %d authorities, the first is %s: want no runtime, and only %s",
					len(seen.runtimes), len(seen.authorities), seen.objects[1].GetName(), sign)
			}

			check(t, set.sweep(t.Context(), seen))
			left := &corev1.Secret{}
			if err := c.Get(t.Context(), set.key(former), left); !apierrors.IsNotFound(err) {
				t.Errorf("the control: got %v, want that the Secret without Certificate is deleted", err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign.DeepCopyObject().(client.Object)); err != nil {
				t.Fatalf("the copy is gone: %v", err)
			}
			if diff := cmp.Diff(before, readAgain(t, c, foreign, client.ObjectKeyFromObject(foreign))); diff != "" {
				t.Errorf("the copy (-before +after):\n%s", diff)
			}
		})
	}
}
