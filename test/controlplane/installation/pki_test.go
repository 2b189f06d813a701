package installation

import (
	"cmp"
	"maps"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// host is the name of the Service in a namespace, as an API server calls it.
func host(namespace string) string { return installation.Name + "." + namespace + ".svc" }

// newSecret returns the Secret of a runtime, with a CA of its own, a client certificate and a
// serving certificate for the Service in a namespace.
func newSecret(t *testing.T, runtime, namespace string) map[string][]byte {
	t.Helper()
	return newSecretFor(t, runtime, installation.Name, namespace)
}

// newSecretFor is for a Service with another name.
func newSecretFor(t *testing.T, runtime, service, namespace string) map[string][]byte {
	t.Helper()
	ca := newCA(t)
	client, err := ca.Client(runtime, testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	host := cmp.Or(service, installation.Name) + "." + namespace + ".svc"
	serving, err := ca.Server("", testpki.Options{DNSNames: []string{host}})
	if err != nil {
		t.Fatal(err)
	}
	secret := files(t, client, ca)
	pair := files(t, serving, ca)
	secret["webhook.crt"], secret["webhook.key"] = pair["tls.crt"], pair["tls.key"]
	return secret
}

// newSecretOfOnePair returns a Secret with the keys of today's fleet: one certificate for both
// uses.
func newSecretOfOnePair(t *testing.T, runtime, namespace string) map[string][]byte {
	t.Helper()
	ca := newCA(t)
	leaf, err := ca.Client(runtime, testpki.Options{DNSNames: []string{host(namespace)}, Usages: rig.BothUsages()})
	if err != nil {
		t.Fatal(err)
	}
	return files(t, leaf, ca)
}

// withServing returns a secret with the serving certificate of another one.
func withServing(secret, other map[string][]byte) map[string][]byte {
	mixed := maps.Clone(secret)
	mixed["webhook.crt"], mixed["webhook.key"] = other["webhook.crt"], other["webhook.key"]
	return mixed
}

func newCA(t *testing.T) *testpki.CA {
	t.Helper()
	ca, err := testpki.NewCA("ca", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func files(t *testing.T, leaf *testpki.Leaf, ca *testpki.CA) map[string][]byte {
	t.Helper()
	return testpki.Files(leaf, ca)
}
