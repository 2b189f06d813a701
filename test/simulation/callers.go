package simulation

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// callers are the client certificates that an agent demands at its webhook. Only an agent with Callers in its plan has
// them. Another API server has the certificate of another authority.
type callers struct {
	bundle string // file with the authorities that the agents trust
	ca     *testpki.CA
}

// trustCallers writes the authorities that the agents trust. They read the file every 5 s.
func (c *cluster) trustCallers(trusted ...*testpki.CA) {
	if c.callers.bundle == "" {
		folder := lab.Must(os.MkdirTemp(c.world.pki.store, "callers-"))
		c.callers.bundle = filepath.Join(folder, "ca.crt")
		c.world.closers = append(c.world.closers, func() { _ = os.RemoveAll(folder) })
	}

	var bundle []byte
	for _, ca := range trusted {
		bundle = slices.Concat(bundle, ca.PEM)
	}
	next := c.callers.bundle + ".next"
	c.world.must(os.WriteFile(next, bundle, 0o600))
	c.world.must(os.Rename(next, c.callers.bundle))
}

// apiServer returns the configuration of the API server, or of another one with a certificate of an authority.
func (c *cluster) apiServer(ca *testpki.CA) *tls.Config {
	config := c.world.pki.apiServer()
	if !c.plan.Callers {
		return config
	}

	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		of := ca
		if of == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			of = c.callers.ca
		}
		return lab.Material(c.world.pki.client("kube-apiserver", of)).Certificate, nil
	}
	return config
}

// callersSettle is longer than an agent needs to read a file. It polls every 5 s.
const callersSettle = 7 * time.Second

// rotateCallers replaces the authority of the API server in the order without a failed call: trusted, used, alone. Then
// the former authority must not be accepted any more, and its successor must be.
func (w *world) rotateCallers(f Fault) {
	c := w.clusters[f.Runtime]
	older, newer := w.pki.older, w.pki.newer

	c.trustCallers(older, newer)
	w.sleepUntil(f.At + f.For/2)
	c.mu.Lock()
	c.callers.ca = newer
	c.mu.Unlock()
	w.sleepUntil(f.At + f.For)
	c.trustCallers(newer)
	sleep(callersSettle)

	for i := range c.agents {
		c.mu.Lock()
		a := c.agents[i]
		c.mu.Unlock()
		if a == nil || a.paused.Load() != nil || w.over() {
			continue
		}

		former := a.accepts(older)
		present := a.accepts(newer)
		if !a.killed.Load() && a.ranSince(w.began.Add(f.At)) {
			w.history.Called(a.epoch, former, present)
		}
	}
}

// accepts reports whether the webhook answers a caller with a certificate of an authority, on a new connection.
func (a *agent) accepts(ca *testpki.CA) bool {
	transport := &http.Transport{
		TLSClientConfig: a.cluster.apiServer(ca), TLSHandshakeTimeout: webhookTimeout,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return a.own(a.cluster.world.network.connect("caller", a.webhook, conditions{}))
		},
	}
	defer transport.CloseIdleConnections()

	ctx, cancel := context.WithTimeout(context.Background(), webhookTimeout)
	defer cancel()
	answer, err := transport.RoundTrip(lab.Must(http.NewRequestWithContext(ctx, http.MethodGet, "https://agent/", http.NoBody)))
	a.cluster.world.logf("%s and a caller with the authority of %s: %v", a.epoch, ca.Certificate.NotAfter, err)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return true // Whatever the status is: a caller without a valid certificate gets none.
}
