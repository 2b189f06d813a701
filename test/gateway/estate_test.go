package gateway_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// controlPlane is a listener, with or without nginx in front of it. It follows the files of its key
// material.
type controlPlane struct {
	t *testing.T
	// own is the listener's secret. With nginx, runtimes see front, and nginx shows back to the
	// listener.
	own, front, back *secret
	files            *keys.Files
	nginx            *lab.Nginx
	addr             string
	arrivals         lab.Arrivals
}

// issueServer issues for this machine; with nginx, the listener's own is for localhost, too.
func issueServer(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
	return ca.Server("kcp", opts)
}

func issueGateway(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
	opts.DNSNames = []string{gatewayName}
	return ca.Client("gateway", opts)
}

func startControlPlane(t *testing.T, behindNginx bool, issuer *testpki.CA, trusts ...*testpki.CA) *controlPlane {
	t.Helper()
	c := &controlPlane{t: t, own: newSecret(t, issueServer)}
	c.own.write(issuer, trusts...)
	ca, cert, key := c.own.volume.Paths()
	c.files = lab.Must(keys.NewFiles(keys.Paths{CA: ca, Certificate: cert, Key: key},
		keys.FilesOptions{Poll: 200 * time.Millisecond}))
	c.listen(c.peers(behindNginx))
	if behindNginx {
		c.front, c.back = newSecret(t, issueServer), newSecret(t, issueGateway)
		c.front.write(issuer, trusts...)
		c.back.write(issuer, trusts...)
		opts := lab.GatewayOptions{Upstream: c.addr}
		opts.ClientCA, opts.Certificate, opts.Key = c.front.volume.Paths()
		opts.UpstreamCA, opts.UpstreamCertificate, opts.UpstreamKey = c.back.volume.Paths()
		c.nginx = lab.StartGateway(t, opts)
		c.addr = c.nginx.Addr
	}
	return c
}

// peers identifies runtimes by their connections, or by the header of nginx.
func (c *controlPlane) peers(behindNginx bool) listener.Peers {
	roots := keys.Roots(c.files)
	if !behindNginx {
		return listener.FromTLSWithRoots(roots, listener.PeerOptions{})
	}
	return listener.FromXFCC(listener.ProxyCertificate(roots, gatewayName), roots, listener.PeerOptions{})
}

// listen runs the listener until the test ends.
func (c *controlPlane) listen(peers listener.Peers) {
	c.t.Helper()
	bound := lab.Must(new(net.ListenConfig).Listen(c.t.Context(), "tcp", "127.0.0.1:0"))
	c.addr = bound.Addr().String()
	domains := listener.DomainsFunc(func(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
		return string(id) + ".example.com", nil
	})
	l := lab.Must(listener.New(peers, listener.SANPinning(domains),
		map[core.Manager]core.Handler{component: core.HandlerFunc(c.handle)},
		listener.Options{Listener: bound, TLS: keys.ServerTLSConfig(c.files)}))
	lab.Run(c.t, "files", c.files.Start)
	lab.Run(c.t, "listener", l.Start)
}

func (c *controlPlane) handle(_ context.Context, d core.Delivery) error {
	c.arrivals.Delivered(d, 1, nil)
	return nil
}

func (c *controlPlane) secrets() []*secret {
	if c.nginx == nil {
		return []*secret{c.own}
	}
	return []*secret{c.own, c.front, c.back}
}

// write rotates every secret.
func (c *controlPlane) write(issuer *testpki.CA, trusts ...*testpki.CA) {
	c.t.Helper()
	for _, s := range c.secrets() {
		s.write(issuer, trusts...)
	}
	if c.nginx != nil {
		c.nginx.Reload()
	}
}

// awaitWritten waits until the written key material is in use.
func (c *controlPlane) awaitWritten() {
	c.t.Helper()
	eventually(c.t, "the listener uses its new certificate", func() bool {
		return c.files.Status().Material.Fingerprint == fingerprintOf(c.own.leaf) && c.files.Status().Err == nil
	})
	if c.nginx != nil {
		c.nginx.AwaitCertificate(c.front.leaf.TLS.Leaf.SerialNumber.String())
	}
}

func fingerprintOf(leaf *testpki.Leaf) string {
	sum := sha256.Sum256(leaf.TLS.Leaf.Raw)
	return hex.EncodeToString(sum[:])
}

// runtimeAgent is the agent of a runtime, and its secret, which serves the webhook, too.
type runtimeAgent struct {
	*lab.Agent

	t      *testing.T
	id     core.RuntimeID
	secret *secret
}

func startAgent(
	t *testing.T, id, controlPlane string, env map[string]string, issuer *testpki.CA,
	trusts ...*testpki.CA,
) *runtimeAgent {
	t.Helper()
	a := &runtimeAgent{t: t, id: core.RuntimeID(id)}
	a.secret = newSecret(t, func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
		opts.DNSNames, opts.IPs = []string{id + ".example.com"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		return ca.Client(id, opts)
	})
	a.secret.write(issuer, trusts...)
	all := map[string]string{"KCP_CONTRACT": "v3", "MANAGERS": component, "HEARTBEAT_INTERVAL": "250ms"}
	maps.Copy(all, env)
	a.Agent = lab.StartAgent(t, a.secret.volume, controlPlane, lab.AgentOptions{Env: all})
	return a
}

// ready returns the detail of the agent's readiness.
func (a *runtimeAgent) ready() string {
	a.t.Helper()
	body, err := lab.Get(a.t.Context(), "http://"+lab.Address(a.MetricsPort)+"/readyz")
	if err != nil {
		a.t.Errorf("the agent is not ready: %v", err)
	}
	return string(body)
}

func (a *runtimeAgent) awaitWritten() {
	a.t.Helper()
	eventually(a.t, "the agent uses its new certificate", func() bool {
		detail := a.ready()
		return strings.Contains(detail, fingerprintOf(a.secret.leaf)) && !strings.Contains(detail, `"problem"`)
	})
}

// reviewed returns how many reviews became an event, or part of one that waited.
func (a *runtimeAgent) reviewed() float64 {
	a.t.Helper()
	const reviews = "runtime_watcher_agent_admission_reviews_total"
	text := a.Scrape()
	return lab.Sum(text, reviews, `decision="accepted"`) + lab.Sum(text, reviews, `decision="coalesced"`)
}

// secret is key material in files, as one end of a connection mounts it.
type secret struct {
	t      *testing.T
	issue  func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error)
	volume *testpki.Volume
	// leaf is the last valid one.
	leaf *testpki.Leaf
}

func newSecret(t *testing.T, issue func(ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error)) *secret {
	t.Helper()
	return &secret{t: t, issue: issue, volume: testpki.NewVolume(t.TempDir())}
}

// write replaces all with a new leaf of issuer, and a bundle.
func (s *secret) write(issuer *testpki.CA, trusts ...*testpki.CA) {
	s.t.Helper()
	s.leaf = lab.Must(s.issue(issuer, testpki.Options{}))
	lab.NoError(s.t, s.volume.Write(testpki.Files(s.leaf, trusts...)))
}
