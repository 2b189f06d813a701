package main

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// attempt is one event of one sender, and the expected outcome.
type attempt struct {
	// sender describes the certificate. Without a certificate, it is nil.
	sender      string
	certificate *tls.Certificate
	// asks describes the event, which a batch of this contract carries.
	asks    string
	version contract.Version
	event   core.WatchEvent
	// claims is the runtime that a batch of contract v3 claims as its source.
	claims core.RuntimeID

	want outcome
}

// outcome is the answer of the listener. Without a handshake, the status is 0.
type outcome struct {
	status int
	// reason is the metric label of a refusal.
	reason string
	// triggered is the runtime that an operator would reconcile.
	triggered string
}

const reasonHandshake = "no handshake"

func refused(reason string) outcome { return outcome{status: http.StatusForbidden, reason: reason} }

func accepted(status int, runtime string) outcome {
	return outcome{status: status, triggered: runtime}
}

// pki has two throw-away CAs: the trusted one, and one of an attacker with the same name.
type pki struct {
	ours, another *testpki.CA
	// material is the certificate of the listener, and the CA that it trusts.
	material *keys.Material
}

func newPKI() (*pki, error) {
	ours, err := testpki.NewCA("runtimes", testpki.Options{})
	if err != nil {
		return nil, err
	}
	another, err := testpki.NewCA("runtimes", testpki.Options{})
	if err != nil {
		return nil, err
	}
	server, err := ours.Server("operator", testpki.Options{})
	if err != nil {
		return nil, err
	}
	return &pki{ours, another, &keys.Material{Certificate: &server.TLS, Roots: ours.Pool()}}, nil
}

// attempts returns the attempts of runtime-a, of senders that impersonate runtime-b, and of others.
func (p *pki) attempts() ([]attempt, error) {
	i := &issuer{ca: p.ours}
	a, b := i.sender("runtime-a", "a.example.com"), i.sender("runtime-b", "b.example.com")
	another := &issuer{ca: p.another}
	attempts := []attempt{
		a.saying("runtime-a", accepted(http.StatusAccepted, "runtime-a")),
		b.saying("runtime-b", accepted(http.StatusAccepted, "runtime-b")),
		a.owning("runtime-a", accepted(http.StatusOK, "runtime-a")),

		a.owning("runtime-b", refused("owner_mismatch")),
		a.saying("runtime-b", refused("source_mismatch")),
		i.sender("runtime-b", "a.example.com").saying("runtime-b", refused("san_mismatch")),
		i.sender("runtime-b", "*.example.com").saying("runtime-b", refused("san_mismatch")),
		i.sender("runtime-b").as("runtime-b, no SAN").saying("runtime-b", refused("san_mismatch")),
		i.sender("", "b.example.com").as("no name, b.example.com").
			saying("runtime-b", outcome{status: http.StatusUnauthorized, reason: "no_identity"}),
		another.sender("runtime-b", "b.example.com").as("runtime-b, of another CA").
			saying("runtime-b", outcome{reason: reasonHandshake}),
		i.expired("runtime-b", "b.example.com").saying("runtime-b", outcome{reason: reasonHandshake}),
		attempt{sender: "no certificate"}.saying("runtime-b", outcome{reason: reasonHandshake}),

		i.sender("runtime-x", "x.example.com").saying("runtime-x", refused("runtime_unknown")),
		i.sender("runtime-c", "c.example.org").as("runtime-c, c.example.org (before)").
			saying("runtime-c", accepted(http.StatusAccepted, "runtime-c")),
		i.sender("runtime-d", "d.example.com").saying("runtime-d", refused("suspended")),
	}
	return attempts, errors.Join(i.err, another.err)
}

// issuer issues certificates of senders and keeps the errors.
type issuer struct {
	ca  *testpki.CA
	err error
}

func (i *issuer) sender(name string, domains ...string) attempt {
	return i.issue(name, testpki.Options{DNSNames: domains}).as(strings.Join(append([]string{name}, domains...), ", "))
}

func (i *issuer) expired(name, domain string) attempt {
	opts := testpki.Options{DNSNames: []string{domain}, NotAfter: time.Now().Add(-time.Minute)}
	return i.issue(name, opts).as(name + ", expired")
}

func (i *issuer) issue(name string, opts testpki.Options) attempt {
	leaf, err := i.ca.Client(name, opts)
	if err != nil {
		i.err = errors.Join(i.err, err)
		return attempt{}
	}
	certificate := leaf.TLS
	return attempt{certificate: &certificate}
}

// as returns the attempt with another description of its sender.
func (a attempt) as(sender string) attempt {
	a.sender = sender
	return a
}

// saying makes an event of contract v3, which claims a source.
func (a attempt) saying(source core.RuntimeID, want outcome) attempt {
	a.asks, a.version, a.want = "source "+string(source), contract.V3, want
	a.event, a.claims = changed(), source
	return a
}

// owning makes an event of contract v1, which names the object to reconcile in the control plane.
func (a attempt) owning(runtime core.RuntimeID, want outcome) attempt {
	a.asks, a.version, a.want = "owner "+string(runtime), contract.V1, want
	a.event = changed()
	a.event.Owner = ownerOf(runtime)
	return a
}
