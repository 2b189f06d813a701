package main

import (
	"crypto/tls"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// attempt is one event of one sender, and the expected answer.
type attempt struct {
	sender sender
	// asks is the contract of the event. Contract v3 claims the runtime as its source, and v1 names
	// the owner, which is the object to reconcile in the control plane.
	asks    contract.Version
	runtime core.RuntimeID
	// status is the status of the answer, 0 without a handshake. reason is the label of a refusal.
	status int
	reason string
}

// sender has a certificate of a CA, or none.
type sender struct {
	title, name string
	ca          *testpki.CA
	opts        testpki.Options
}

const noHandshake = "no handshake"

// pki contains two throw-away CAs: the trusted CA, and a CA of an attacker with the same name.
type pki struct {
	ours, another *testpki.CA
	// material is the certificate of the listener, and the CA that it trusts.
	material *keys.Material
}

// attempts returns the attempts of runtime-a, of senders that impersonate runtime-b, and of others.
func (p *pki) attempts() []attempt {
	const (
		v1 = contract.V1
		v3 = contract.V3
		a  = "runtime-a"
		b  = "runtime-b"
	)

	byA := p.newSender(a, "a.example.com")
	byB := p.newSender(b, "b.example.com")

	noSAN := sender{title: "runtime-b, no SAN", name: b, ca: p.ours}
	noName := p.newSender("", "b.example.com")
	noName.title = "no name, b.example.com"

	other := byB
	other.title = "runtime-b, of another CA"
	other.ca = p.another

	expired := byB
	expired.title = "runtime-b, expired"
	expired.opts.NotAfter = time.Now().Add(-time.Minute)

	// The certificate has the domain that runtime-c had before it moved.
	moved := p.newSender("runtime-c", "c.example.org")
	moved.title += " (before)"

	return []attempt{
		{byA, v3, a, 202, ""},
		{byB, v3, b, 202, ""},
		{byA, v1, a, 200, ""},

		{byA, v1, b, 403, "owner_mismatch"},
		{byA, v3, b, 403, "source_mismatch"},
		{p.newSender(b, "a.example.com"), v3, b, 403, "san_mismatch"},
		{p.newSender(b, "*.example.com"), v3, b, 403, "san_mismatch"},
		{noSAN, v3, b, 403, "san_mismatch"},
		{noName, v3, b, 401, "no_identity"},
		{other, v3, b, 0, noHandshake},
		{expired, v3, b, 0, noHandshake},
		{sender{title: "no certificate"}, v3, b, 0, noHandshake},

		{p.newSender("runtime-x", "x.example.com"), v3, "runtime-x", 403, "runtime_unknown"},
		{moved, v3, "runtime-c", 202, ""},
		{p.newSender("runtime-d", "d.example.com"), v3, "runtime-d", 403, "suspended"},
	}
}

func newPKI() *pki {
	ours := must(testpki.NewCA("runtimes", testpki.Options{}))
	server := must(ours.Server("operator", testpki.Options{}))
	return &pki{
		ours: ours, another: must(testpki.NewCA("runtimes", testpki.Options{})),
		material: &keys.Material{Certificate: &server.TLS, Roots: ours.Pool()},
	}
}

// must returns a value that is made without input.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// newSender returns a sender with a certificate of the trusted CA.
func (p *pki) newSender(name, domain string) sender {
	opts := testpki.Options{DNSNames: []string{domain}}
	return sender{title: name + ", " + domain, name: name, ca: p.ours, opts: opts}
}

// clientConfig returns the TLS configuration of a sender.
func (p *pki) clientConfig(s sender) *tls.Config {
	leaf := &testpki.Leaf{}
	if s.ca != nil {
		leaf = must(s.ca.Client(s.name, s.opts))
	}
	return must(keys.ClientTLSConfig(&keys.Material{Certificate: &leaf.TLS, Roots: p.ours.Pool()}, "localhost"))
}

// batch returns a batch with one event, about a Deployment.
func (a attempt) batch() core.Batch {
	event := core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
	}
	if a.asks == contract.V1 {
		event.Owner = ownerOf(a.runtime)
	}

	return core.Batch{Source: a.runtime, Events: []core.Numbered{{WatchEvent: event, ID: "1"}}}
}

// text describes the request of an attempt.
func (a attempt) text() string {
	if a.asks == contract.V1 {
		return "owner " + string(a.runtime)
	}
	return "source " + string(a.runtime)
}
