package main

import (
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// attempt is one event that somebody sends, and how it should be answered.
type attempt struct {
	// who is what the certificate says, which is shown unless it is nil.
	who         string
	certificate *tls.Certificate
	// asks is what is sent, by which contract.
	asks    string
	version contract.Version
	event   core.WatchEvent
	// claims is the runtime that a batch of contract v3 claims to come from.
	claims core.RuntimeID

	want outcome
}

// outcome is how the listener answered. Without a handshake there is no status.
type outcome struct {
	status int
	// reason is what the listener has counted.
	reason string
	// triggered is the runtime that the operator got an event of.
	triggered core.RuntimeID
}

const reasonHandshake = "no handshake"

func refused(reason string) outcome { return outcome{status: http.StatusForbidden, reason: reason} }

// pki is two throw-away CAs: ours, and one that anybody could make.
type pki struct {
	ours, another *testpki.CA
	// material is what the listener serves with, and whom it trusts.
	material *httpmtls.Material
}

func newPKI() (*pki, error) {
	ours, err := testpki.NewCA("runtimes", testpki.Options{})
	if err != nil {
		return nil, err
	}

	another, err := testpki.NewCA("runtimes", testpki.Options{}) // A name is easily copied.
	if err != nil {
		return nil, err
	}

	server, err := ours.Server("operator", testpki.Options{})
	if err != nil {
		return nil, err
	}

	key, err := server.KeyPEM()
	if err != nil {
		return nil, err
	}

	material, err := httpmtls.NewMaterial(ours.PEM(), server.CertPEM(), key)

	return &pki{ours: ours, another: another, material: material}, err
}

// attempts are made by runtime-a, who is curious, and by others. Everybody whose event is taken triggers himself, and nobody else.
func (p *pki) attempts() ([]attempt, error) {
	var problems []error

	shows := func(ca *testpki.CA, name string, opts testpki.Options) *tls.Certificate {
		leaf, err := ca.Client(name, opts)
		if err != nil {
			problems = append(problems, err)

			return nil
		}

		certificate := leaf.TLS()

		return &certificate
	}
	domain := func(names ...string) testpki.Options { return testpki.Options{DNSNames: names} }
	expired := domain("b.example.com")
	expired.NotAfter = time.Now().Add(-time.Minute)

	a := attempt{who: "runtime-a, a.example.com", certificate: shows(p.ours, "runtime-a", domain("a.example.com"))}
	b := attempt{who: "runtime-b, b.example.com", certificate: shows(p.ours, "runtime-b", domain("b.example.com"))}
	// Whoever says that he is runtime-b in all he says.
	as := func(who string, certificate *tls.Certificate, want outcome) attempt {
		return attempt{who: who, certificate: certificate}.saying("runtime-b", want)
	}

	attempts := []attempt{
		a.saying("runtime-a", outcome{status: http.StatusAccepted, triggered: "runtime-a"}),
		b.saying("runtime-b", outcome{status: http.StatusAccepted, triggered: "runtime-b"}),
		a.owning("runtime-a", outcome{status: http.StatusOK, triggered: "runtime-a"}),

		a.owning("runtime-b", refused("owner_mismatch")),
		a.saying("runtime-b", refused(listener.ReasonSourceMismatch)),
		as("runtime-b, a.example.com", shows(p.ours, "runtime-b", domain("a.example.com")), refused(listener.ReasonSANMismatch)),
		as("runtime-b, *.example.com", shows(p.ours, "runtime-b", domain("*.example.com")), refused(listener.ReasonSANMismatch)),
		as("runtime-b, no SAN", shows(p.ours, "runtime-b", domain()), refused(listener.ReasonSANMismatch)),
		as("no name, b.example.com", shows(p.ours, "", domain("b.example.com")),
			outcome{status: http.StatusUnauthorized, reason: listener.ReasonNoIdentity}),
		as("runtime-b, of another CA", shows(p.another, "runtime-b", domain("b.example.com")), outcome{reason: reasonHandshake}),
		as("runtime-b, expired", shows(p.ours, "runtime-b", expired), outcome{reason: reasonHandshake}),
		as("no certificate", nil, outcome{reason: reasonHandshake}),

		attempt{who: "runtime-x, x.example.com", certificate: shows(p.ours, "runtime-x", domain("x.example.com"))}.
			saying("runtime-x", refused(listener.ReasonDomainMissing)),
		attempt{who: "runtime-c, c.example.org (before)", certificate: shows(p.ours, "runtime-c", domain("c.example.org"))}.
			saying("runtime-c", outcome{status: http.StatusAccepted, triggered: "runtime-c"}),
		attempt{who: "runtime-d, d.example.com", certificate: shows(p.ours, "runtime-d", domain("d.example.com"))}.
			saying("runtime-d", refused("suspended")),
	}

	return attempts, errors.Join(problems...)
}

// saying makes an event of contract v3, which names its source.
func (a attempt) saying(source core.RuntimeID, want outcome) attempt {
	a.asks, a.version, a.want = "source "+string(source), contract.V3, want
	a.event = changed()
	a.claims = source

	return a
}

// owning makes an event of contract v1, which names the object in the control plane that is to be reconciled.
func (a attempt) owning(runtime core.RuntimeID, want outcome) attempt {
	a.asks, a.version, a.want = "owner "+string(runtime), contract.V1, want
	a.event = changed()
	a.event.Owner = ownerOf(runtime)

	return a
}
