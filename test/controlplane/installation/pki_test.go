package installation

import (
	"cmp"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// newSecret returns the Secret of a runtime, with a CA of its own, a client certificate and a
// serving certificate for the Service in a namespace.
func newSecret(t *testing.T, runtime, namespace string) map[string][]byte {
	t.Helper()
	return newSecretFor(t, runtime, installation.Name, namespace)
}

// newSecretFor is for a Service with another name.
func newSecretFor(t *testing.T, runtime, service, namespace string) map[string][]byte {
	t.Helper()
	ca := rig.NewPKI(t).CA
	host := cmp.Or(service, installation.Name) + "." + namespace + ".svc"
	secret := testpki.Files(rig.Must(ca.Client(runtime, testpki.Options{})), ca)
	pair := testpki.Files(rig.Must(ca.Server("", testpki.Options{DNSNames: []string{host}})), ca)
	secret["webhook.crt"], secret["webhook.key"] = pair["tls.crt"], pair["tls.key"]
	return secret
}

// newSecretOfOnePair returns a Secret with the keys of today's fleet: one certificate for both
// uses.
func newSecretOfOnePair(t *testing.T, runtime, namespace string) map[string][]byte {
	t.Helper()
	ca, host := rig.NewPKI(t).CA, installation.Name+"."+namespace+".svc"
	return testpki.Files(rig.Must(ca.Client(runtime, testpki.Options{DNSNames: []string{host}, Usages: rig.BothUsages()})), ca)
}
