package certificates_test

import (
	"crypto/rsa"
	"crypto/tls"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// Today's fleet has RSA keys.
func TestKeysNamesAndLifeAreSet(t *testing.T) {
	c := startPlane(t)
	set, err := certificates.New(c, types.NamespacedName{Namespace: namespace, Name: setName}, []string{serverName},
		everybodyConfirms, certificates.Options{
			Propagation: propagation, KeyAlgorithm: certv1.RSAKeyAlgorithm, Duration: 48 * time.Hour,
			RenewBefore: 12 * time.Hour, Service: "agent",
			RuntimeNamespace: "kyma-system",
		})
	if err != nil {
		t.Fatal(err)
	}
	bootstrapped(t, set)
	issued := ensured(t, set, certificates.Runtime{ID: "runtime-a", Domain: "a.skr.example"})
	for name, want := range map[string][]string{
		"tls": {"a.skr.example"},
		"webhook": {
			"agent.kyma-system", "agent.kyma-system.svc", "agent.kyma-system.svc.cluster.local",
		},
	} {
		pair, err := tls.X509KeyPair(issued.Secret[name+".crt"], issued.Secret[name+".key"])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, pair.Leaf.DNSNames); diff != "" {
			t.Errorf("%s: DNS names (-want +have):\n%s", name, diff)
		}
		if key, ok := pair.Leaf.PublicKey.(*rsa.PublicKey); !ok || key.Size() != 2048/8 {
			t.Errorf("%s: key %T, want RSA with 2048 bits", name, pair.Leaf.PublicKey)
		}
		if life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore); life != 48*time.Hour {
			t.Errorf("%s: life %v", name, life)
		}
	}
}
