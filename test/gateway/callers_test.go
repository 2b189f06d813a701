package gateway_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// callers is an API server that shows a client certificate to the webhook, and an agent that demands it. The certificate is in files that the
// API server's configuration names, and its CAs follow one another.
type callers struct {
	*apiServer

	agent *runtimeAgent
	cas   []*testpki.CA
	// shown is what the API server has, trusted the bundle that the agent has.
	shown   *secret
	trusted string
	now     int
}

func newCallers(t *testing.T) *callers {
	t.Helper()

	c := &callers{trusted: filepath.Join(t.TempDir(), "callers.crt"), cas: []*testpki.CA{must(testpki.NewCA("callers-0", testpki.Options{}))}}
	c.shown = newSecret(t, true, func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
		return ca.Client("kube-apiserver", opts)
	})
	c.shown.write(c.cas[0], c.cas[0])
	c.trust(t, c.cas[0])

	_, certificate, key := c.shown.volume.Paths()
	plane := controlplane.StartT(t, controlplane.Options{APIServerArgs: map[string][]string{"admission-control-config-file": {
		rig.AdmissionConfiguration(t, map[string]*clientcmdapi.AuthInfo{"*": {ClientCertificate: certificate, ClientKey: key}}),
	}}})

	servers := must(testpki.NewCA("servers", testpki.Options{}))
	control := startControlPlane(t, false, true, servers, servers)
	c.agent = startAgent(t, "runtime-1", true, control.addr, map[string]string{"WEBHOOK_CLIENT_CA": c.trusted}, servers, servers)
	c.apiServer = newAPIServer(t, plane, control, c.agent)
	c.apiServer.trust(servers.PEM())

	return c
}

// trust replaces the bundle of the agent.
func (c *callers) trust(t *testing.T, cas ...*testpki.CA) {
	t.Helper()

	if err := os.WriteFile(c.trusted+".next", testpki.Bundle(cas...), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Rename(c.trusted+".next", c.trusted); err != nil {
		t.Fatal(err)
	}
}

// trustAndAwait is trust, and returns when the agent has taken the bundle into use.
func (c *callers) trustAndAwait(t *testing.T, cas ...*testpki.CA) {
	t.Helper()

	reloads := func() float64 {
		return c.agent.Metric("runtime_watcher_agent_certificate_reloads_total", `use="webhook_ca"`)
	}
	before := reloads()

	c.trust(t, cas...)
	eventually(t, "the agent trusts the new bundle", func() bool { return reloads() > before })
}

// rotate puts a certificate of a new CA, which the agent trusts beside the one before, where the API server finds it.
func (c *callers) rotate(t *testing.T) {
	t.Helper()

	c.now++
	c.cas = append(c.cas, must(testpki.NewCA(fmt.Sprint("callers-", c.now), testpki.Options{})))
	c.trustAndAwait(t, c.cas[c.now-1:]...)
	c.shown.write(c.cas[c.now], c.cas[c.now])
}

func (c *callers) refused() float64 {
	return c.agent.Metric("runtime_watcher_agent_tls_handshake_failures_total")
}

// TestAPIServerRotatesItsCertificate shows that an API server takes a new client certificate for webhooks without a restart, if its configuration
// names files.
func TestAPIServerRotatesItsCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("runs an API server")
	}

	c := newCallers(t)

	const rotations = 3
	for range rotations {
		c.rotate(t)
		c.trustAndAwait(t, c.cas[c.now])
		c.reconnect()
		c.write(objectName(c.now))
	}

	if asked, open := c.metric("request_total", `code="200"`), c.metric("fail_open_count"); asked < rotations || open != 0 {
		t.Errorf("of %d writes, the webhook was asked about %v, and %v went on without an answer", rotations, asked, open)
	}

	if n := c.refused(); n != 0 {
		t.Errorf("%v handshakes failed, want 0", n)
	}
}
