package certmanager_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

// The controllers issue a requested certificate at once, and end before their API server does.
func TestIssue(t *testing.T) {
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		t.Fatal(err)
	}

	if err := certv1.AddToScheme(types); err != nil {
		t.Fatal(err)
	}

	plane := apiserver.StartT(t, apiserver.Options{Scheme: types})
	process := certmanager.StartT(t, plane.Kubeconfig, certmanager.Options{Verbose: true})

	meta := metav1.ObjectMeta{Namespace: "default", Name: "self-signed"}
	issuer := &certv1.Issuer{
		ObjectMeta: meta,
		Spec:       certv1.IssuerSpec{IssuerConfig: certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}}},
	}

	if err := plane.Client.Create(t.Context(), issuer); err != nil {
		t.Fatal(err)
	}

	var took []time.Duration
	for _, name := range []string{"first", "second", "third", "fourth", "fifth"} {
		certificate := &certv1.Certificate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: certv1.CertificateSpec{
				SecretName: name, CommonName: name, IssuerRef: cmmeta.IssuerReference{Name: "self-signed"},
				PrivateKey: &certv1.CertificatePrivateKey{Algorithm: certv1.ECDSAKeyAlgorithm},
			},
		}
		begin := time.Now()
		if err := plane.Client.Create(t.Context(), certificate); err != nil {
			t.Fatal(err)
		}

		rig.Eventually(t, time.Minute, "the Secret is there", func() bool {
			var secret corev1.Secret

			err := plane.Client.Get(t.Context(), client.ObjectKeyFromObject(certificate), &secret)
			return err == nil && len(secret.Data[corev1.TLSCertKey]) > 0
		})

		took = append(took, time.Since(begin))
	}

	t.Logf("a Certificate is issued after %v at best, %v at worst", slices.Min(took), slices.Max(took))
	if log := process.Log(); !strings.Contains(log, "fifth") {
		t.Errorf("the log does not name the last certificate:\n%s", log)
	}

	begin := time.Now()
	process.Stop()
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("Stop took %v: was it killed?", took)
	}
}

func TestStartFails(t *testing.T) {
	if _, err := certmanager.Start(t.Context(), "/does/not/exist", certmanager.Options{}); err == nil {
		t.Error("no error without a kubeconfig")
	}
}
