package simulation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// keySet has the key material of one process. It implements [keys.Source].
type keySet struct {
	mu       sync.Mutex
	material *keys.Material
	problem  error // of the newest files
}

// Material implements [keys.Source].
func (k *keySet) Material() (*keys.Material, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.material, k.problem
}

func (k *keySet) isBroken() bool {
	_, problem := k.Material()
	return problem != nil
}

// load puts material in use, unless it is broken.
func (k *keySet) load(material *keys.Material, problem error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problem = problem
	if problem == nil {
		k.material = material
	}
}

// rotationSteps is the number of steps of a rotation.
const rotationSteps = 6

// rotate replaces the authority and all certificates, in an order without failed connections.
func (w *world) rotate(f Fault) {
	older, newer := w.pki.older, w.pki.newer
	steps := [rotationSteps]func(){
		func() { w.serve(older, older, newer) },
		func() { w.renew(older, older, newer) },
		func() { w.renew(newer, older, newer) },
		func() { w.serve(newer, older, newer) },
		func() { w.renew(newer, newer) },
		func() { w.serve(newer, newer) },
	}
	for i, step := range steps {
		w.sleepUntil(f.At + f.For*time.Duration(i)/rotationSteps)
		if f.Value&(1<<i) != 0 {
			w.clusters[f.Runtime].breakKeys(i)
			sleep(time.Second)
		}
		step()
		w.logf("rotation: step %d", i)
	}
}

// serve gives the control plane a certificate and the authorities that it trusts.
func (w *world) serve(ca *testpki.CA, trusted ...*testpki.CA) {
	material, err := materialOf(w.pki.servers[ca], trusted...)
	w.must(err)
	w.server.load(material, err)
}

// renew gives each runtime a certificate and the authorities that it trusts.
func (w *world) renew(ca *testpki.CA, trusted ...*testpki.CA) {
	for _, c := range w.clusters {
		leaf, err := w.pki.client(c.plan.Name, ca)
		w.must(err)
		material, err := materialOf(leaf, trusted...)
		w.must(err)
		c.load(material, err)
	}
}

const (
	// manyCAs and longError exceed the limits of a heartbeat.
	manyCAs, longError = 80, 40
)

// load gives key material to the agents, which read it every 5 s.
func (c *cluster) load(material *keys.Material, problem error) {
	switch {
	case problem != nil:
		problem = fmt.Errorf("%w%s", problem, strings.Repeat(" "+problem.Error(), longError))
	case c.plan.ManyCAs:
		many := *material
		many.RootFingerprints = slices.Repeat(many.RootFingerprints, manyCAs)
		material = &many
	}
	c.keys.load(material, problem)
}

// breakKeys gives a runtime invalid files: a key of another certificate, or an expired certificate.
func (c *cluster) breakKeys(step int) {
	p := c.world.pki
	opts := validity()
	opts.NotAfter = opts.NotBefore.Add(time.Hour)
	leaf, err := issue(c.plan.Name, p.older, opts)
	c.world.must(err)
	other, err := p.client(c.plan.Name, p.newer)
	c.world.must(err)
	cert := leaf.CertPEM
	if step%2 == 0 {
		cert = cert[:len(cert)/2]
	}
	c.load(keys.NewMaterial(p.older.PEM, cert, other.KeyPEM))
}

// expire gives a runtime a certificate that expires at a time.
func (c *cluster) expire(at time.Time) {
	opts := validity()
	opts.NotAfter = at
	leaf, err := issue(c.plan.Name, c.world.pki.older, opts)
	c.world.must(err)
	material, err := materialOf(leaf, c.world.pki.older)
	c.world.must(err)
	c.load(material, err)
}

// awaitRenewal records that the certificate has expired, and returns the function that renews it.
func (c *cluster) awaitRenewal() (renew func()) {
	mend := c.world.history.Break(c.plan.Name, string(CertificateExpired))
	return func() {
		c.load(c.world.pki.clientKeys(c.plan.Name))
		mend()
	}
}

// checkKeys connects with each replica of the operator after a rotation.
func (w *world) checkKeys() {
	if !w.plan.hasAny(KeysRotated) || w.plan.Gateway {
		return
	}
	for _, o := range w.operators {
		if o != nil {
			w.history.Connected(o.name, w.connect(o))
		}
	}
}

func (w *world) connect(o *operator) error {
	config, err := keys.ClientTLSConfig(&w.clusters[0].keys, serverName)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: config, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return w.network.connect("prober", o.server, w.network.now("prober"))
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+serverName, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}

// serverName is the name of the control plane.
const serverName = "control-plane.example.com"

// pki is the key material of all schedules: keys are costly, and virtual time begins in 2000.
type pki struct {
	older, newer *testpki.CA
	servers      map[*testpki.CA]*testpki.Leaf
	webhook      *keys.Material // of all agents
	store        string         // folder of NATS servers

	mu      sync.Mutex
	clients map[holder]*testpki.Leaf
}

// holder is a runtime and the authority of its certificate.
type holder struct {
	runtime string
	ca      *testpki.CA
}

// newPKI makes the key material outside of a bubble, where time is real.
func newPKI() (*pki, error) {
	p := &pki{servers: make(map[*testpki.CA]*testpki.Leaf), clients: make(map[holder]*testpki.Leaf)}
	for _, ca := range []**testpki.CA{&p.older, &p.newer} {
		made, err := testpki.NewCA("simulation", validity())
		if err != nil {
			return nil, err
		}
		opts := validity()
		opts.DNSNames = []string{serverName}
		*ca = made
		if p.servers[made], err = made.Server("control plane", opts); err != nil {
			return nil, err
		}
	}
	opts := validity()
	opts.DNSNames = []string{"agent"}
	leaf, err := p.older.Server("agent", opts)
	if err != nil {
		return nil, err
	}
	p.webhook, err = materialOf(leaf)
	return p, err
}

// apiServer returns the configuration of an API server that calls a webhook.
func (p *pki) apiServer() *tls.Config {
	return &tls.Config{RootCAs: p.older.Pool(), ServerName: "agent", MinVersion: tls.VersionTLS13}
}

func validity() testpki.Options {
	return testpki.Options{
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

// domainOf is the registered domain of a runtime.
func domainOf(runtime string) string { return runtime + ".skr.example.com" }

// client returns the certificate of a runtime.
func (p *pki) client(runtime string, ca *testpki.CA) (*testpki.Leaf, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := holder{runtime, ca}
	if leaf := p.clients[key]; leaf != nil {
		return leaf, nil
	}
	leaf, err := issue(runtime, ca, validity())
	p.clients[key] = leaf
	return leaf, err
}

func issue(runtime string, ca *testpki.CA, opts testpki.Options) (*testpki.Leaf, error) {
	opts.DNSNames = []string{domainOf(runtime)}
	opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	leaf, err := ca.Client(runtime, opts)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", runtime, err)
	}
	return leaf, nil
}

// clientKeys returns the first key material of a runtime.
func (p *pki) clientKeys(runtime string) (*keys.Material, error) {
	leaf, err := p.client(runtime, p.older)
	if err != nil {
		return nil, err
	}
	return materialOf(leaf, p.older)
}

func materialOf(leaf *testpki.Leaf, trusted ...*testpki.CA) (*keys.Material, error) {
	return keys.NewMaterial(testpki.Bundle(trusted...), leaf.CertPEM, leaf.KeyPEM)
}
