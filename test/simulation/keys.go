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
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// keySet contains the key material of one process. It implements [keys.Source].
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
	w.server.load(lab.Material(w.pki.servers[ca], trusted...), nil)
}

// renew gives each runtime a certificate and the authorities that it trusts.
func (w *world) renew(ca *testpki.CA, trusted ...*testpki.CA) {
	for _, c := range w.clusters {
		c.load(lab.Material(w.pki.client(c.plan.Name, ca), trusted...), nil)
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
	cert := issue(c.plan.Name, p.older, opts).CertPEM
	if step%2 == 0 {
		cert = cert[:len(cert)/2]
	}
	c.load(keys.NewMaterial(p.older.PEM, cert, p.client(c.plan.Name, p.newer).KeyPEM))
}

// expire gives a runtime a certificate that expires at a time.
func (c *cluster) expire(at time.Time) {
	opts := validity()
	opts.NotAfter = at
	ca := c.world.pki.older
	c.load(lab.Material(issue(c.plan.Name, ca, opts), ca), nil)
}

// awaitRenewal records that the certificate has expired, and returns the function that renews it.
func (c *cluster) awaitRenewal() (renew func()) {
	mend := c.world.history.Break(c.plan.Name, string(CertificateExpired))
	return func() {
		c.load(c.world.pki.clientKeys(c.plan.Name), nil)
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
	transport := w.clusters[0].transport(func(context.Context) (net.Conn, error) {
		return w.network.connect("prober", o.server, w.network.now("prober"))
	})
	defer transport.CloseIdleConnections()
	status, err := get(context.Background(), transport, "")
	if status == http.StatusUnauthorized {
		return fmt.Errorf("status %d", status)
	}
	return err
}

// transport returns a transport with the key material of the runtime.
func (c *cluster) transport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		TLSClientConfig: lab.Must(keys.ClientTLSConfig(&c.keys, serverName)),
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
}

// get returns the status of the answer of the control plane.
func get(ctx context.Context, from http.RoundTripper, path string) (status int, err error) {
	answer, err := from.RoundTrip(lab.Must(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName+path, http.NoBody)))
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
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
func newPKI() *pki {
	p := &pki{servers: make(map[*testpki.CA]*testpki.Leaf), clients: make(map[holder]*testpki.Leaf)}
	opts := validity()
	for _, ca := range []**testpki.CA{&p.older, &p.newer} {
		*ca = lab.Must(testpki.NewCA("simulation", validity()))
		opts.DNSNames = []string{serverName}
		p.servers[*ca] = lab.Must((*ca).Server("control plane", opts))
	}
	opts.DNSNames = []string{"agent"}
	p.webhook = lab.Material(lab.Must(p.older.Server("agent", opts)))
	return p
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
func (p *pki) client(runtime string, ca *testpki.CA) *testpki.Leaf {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := holder{runtime, ca}
	if p.clients[key] == nil {
		p.clients[key] = issue(runtime, ca, validity())
	}
	return p.clients[key]
}

func issue(runtime string, ca *testpki.CA, opts testpki.Options) *testpki.Leaf {
	opts.DNSNames = []string{domainOf(runtime)}
	opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return lab.Must(ca.Client(runtime, opts))
}

// strangersKeys returns key material with the name of a runtime, and the domain of a stranger.
func (p *pki) strangersKeys(runtime, stranger string) *keys.Material {
	opts := validity()
	opts.DNSNames = []string{domainOf(stranger)}
	opts.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return lab.Material(lab.Must(p.older.Client(runtime, opts)), p.older)
}

// clientKeys returns the first key material of a runtime.
func (p *pki) clientKeys(runtime string) *keys.Material {
	return lab.Material(p.client(runtime, p.older), p.older)
}
