package certificates

import (
	"bytes"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// An API server refuses a bundle with anything but certificates, and so do agents.
func TestOnlyCertificatesOfABundleArePublished(t *testing.T) {
	t.Parallel()
	ca, err := testpki.NewCA("ca", testpki.Options{})
	check(t, err)
	leaf, err := ca.Client(string(shared), testpki.Options{})
	check(t, err)
	sound := testpki.Bundle(ca)
	for name, added := range map[string]string{
		"nothing":        "",
		"a key":          "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
		"no certificate": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
	} {
		files := testpki.Files(leaf, ca)
		issued := &corev1.Secret{Data: files}
		listener := &corev1.Secret{ObjectMeta: made("watcher"), Data: map[string][]byte{
			"ca.crt": append(bytes.Clone(sound), added...), "tls.crt": files["tls.crt"], "tls.key": files["tls.key"],
		}}
		var none []types.UID
		set := newSet(t, newPlane(t, &none, listener), "watcher")
		set.opts.ListenerSecret = set.key(listener.Name)
		p := &pair{secret: issued, wanted: &certv1.Certificate{Spec: certv1.CertificateSpec{
			CommonName: string(shared), Usages: []certv1.KeyUsage{certv1.UsageClientAuth},
		}}}
		status, err := set.runtimeStatus(t.Context(), Runtime{ID: shared}, p, p)
		if have := status.Secret["ca.crt"]; err != nil || !bytes.Equal(have, sound) {
			t.Errorf("%s: a runtime gets the bundle\n%s\n%v, want the certificate alone", name, have, err)
		}
		seen := &observed{}
		if err := set.readListener(t.Context(), seen); err != nil || seen.fits(set.names) != (added == "") {
			t.Errorf("%s: the bundle is as published: %t, %v", name, seen.fits(set.names), err)
		}
	}
}
