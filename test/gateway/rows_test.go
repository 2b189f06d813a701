package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	reasonOwnerMismatch  = controllerruntime.ReasonOwnerMismatch
	reasonRuntimeUnknown = controllerruntime.ReasonRuntimeUnknown
)

// leafOf returns a certificate as it travels.
func leafOf(leaf *testpki.Leaf, err error) *tls.Certificate { return new(must(leaf, err).TLS()) }

// runtime returns the good certificate of a runtime.
func (a *attacks) runtime(name string, domains ...string) *tls.Certificate {
	return a.with(name, testpki.Options{DNSNames: domains})
}

// with returns a certificate of the CA of the runtimes.
func (a *attacks) with(name string, opts testpki.Options) *tls.Certificate {
	return leafOf(a.ca.runtimes.Client(name, opts))
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

// certificates are bad ones, all of which say that they are the victim's.
func (a *attacks) certificates() []row {
	good := testpki.Options{DNSNames: []string{victimDomain}}
	edited := func(edit func(*testpki.Options)) testpki.Options {
		opts := good
		edit(&opts)

		return opts
	}
	usages := func(usages ...x509.ExtKeyUsage) testpki.Options {
		return edited(func(o *testpki.Options) { o.Usages = usages })
	}
	namesake := must(testpki.NewCA("runtimes", testpki.Options{}))
	below := must(a.ca.runtimes.Intermediate("runtimes below", testpki.Options{}))
	chained := leafOf(below.Client(victim, good))
	alone := new(*chained)
	alone.Certificate = alone.Certificate[:1]

	// A leaf is no CA: what self signs is worth nothing, though its own chain is good.
	byLeaf := issue(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: victim}, DNSNames: good.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.self.Leaf, a.self.PrivateKey)
	byLeaf.Certificate = append(byLeaf.Certificate, a.self.Certificate...)

	return []row{
		{name: "no certificate", want: func(w way, v contract.Version) outcome {
			if w == written || w == lax {
				return unauthenticated(listener.ReasonNoCertificate)
			}

			return refused(listener.ReasonNoCertificate)(w, v)
		}},
		{name: "self-signed", leaf: leafOf(testpki.SelfSigned(victim, good)), want: refused(listener.ReasonUntrustedChain)},
		{name: "expired", leaf: a.with(victim, edited(func(o *testpki.Options) {
			o.NotAfter = time.Now().Add(-time.Minute)
		})), want: refused(listener.ReasonExpired)},
		{name: "not yet valid", leaf: a.with(victim, edited(func(o *testpki.Options) {
			o.NotBefore = time.Now().Add(time.Hour)
		})), want: refused(listener.ReasonNotYetValid)},
		{name: "of another CA with the same name", leaf: leafOf(namesake.Client(victim, good)), want: refused(listener.ReasonUntrustedChain)},
		{name: "of the CA of the control plane", leaf: leafOf(a.ca.gateways.Client(victim, good)), want: refused(listener.ReasonUntrustedChain)},
		{name: "for servers only", leaf: a.with(victim, usages(x509.ExtKeyUsageServerAuth)), want: refused(listener.ReasonWrongKeyUsage)},
		{name: "for e-mail only", leaf: a.with(victim, usages(x509.ExtKeyUsageEmailProtection)), want: refused(listener.ReasonWrongKeyUsage)},
		{name: "signed by a runtime", leaf: byLeaf, want: refused(listener.ReasonUntrustedChain)},
		{name: "intermediate missing", leaf: alone, want: refused(listener.ReasonUntrustedChain)},
		{name: "without a name", leaf: a.with("", good), want: everywhere(unauthenticated(listener.ReasonNoIdentity))},
		{name: "a line break in the name", leaf: a.with(victim+"\n", good), want: everywhere(unauthenticated(listener.ReasonNoIdentity))},
		{name: "a NUL in the name", leaf: a.with(victim+"\x00", good), want: everywhere(unauthenticated(listener.ReasonNoIdentity))},
		{name: "an invisible character in the name", leaf: a.with(victim+"\u200b", good), want: everywhere(unauthenticated(listener.ReasonNoIdentity))},
	}
}

// claims are made with certificates that verify.
func (a *attacks) claims(t *testing.T) []row {
	t.Helper()

	v1, v2, v3 := contract.V1, contract.V2, contract.V3
	mismatch, unknown := forbidden(listener.ReasonSANMismatch), forbidden(reasonRuntimeUnknown)
	notHis := map[contract.Version]outcome{
		v1: forbidden(reasonOwnerMismatch), v2: unknown, v3: forbidden(listener.ReasonSourceMismatch),
	}
	rows := []row{
		{name: "victim as owner (v1)", leaf: a.self, versions: []contract.Version{v1}, want: everywhere(forbidden(reasonOwnerMismatch))},
		{name: "victim as source (v3)", leaf: a.self, versions: []contract.Version{v3}, want: everywhere(forbidden(listener.ReasonSourceMismatch))},
		{
			name: "victim as owner (v3)", leaf: a.self, versions: []contract.Version{v3}, want: everywhere(forbidden(reasonOwnerMismatch)),
			event: func(v contract.Version) core.WatchEvent {
				event := eventOf(v, self)
				event.Owner = owner(victim)

				return event
			},
		},
		{
			name: "victim as owner of a resync (v3)", leaf: a.self, versions: []contract.Version{v3}, want: everywhere(forbidden(reasonOwnerMismatch)),
			event: func(contract.Version) core.WatchEvent {
				return core.WatchEvent{Kind: core.KindResync, ID: "1", Source: self, Owner: owner(victim)}
			},
		},
		{name: "name of the victim, SAN of self", leaf: a.runtime(victim, selfDomain), want: everywhere(mismatch)},
		{name: "name of the victim, no SAN", leaf: a.runtime(victim), want: everywhere(mismatch)},
		{name: "name of the victim, wildcard SAN", leaf: a.runtime(victim, "*.example.com"), want: everywhere(mismatch)},
		{name: "name of the victim, domain below", leaf: a.runtime(victim, "x."+victimDomain), want: everywhere(mismatch)},
		{name: "name of the victim, domain above", leaf: a.runtime(victim, "example.com"), want: everywhere(mismatch)},
		{name: "name of the victim, longer domain", leaf: a.runtime(victim, victimDomain+".evil", "evil"+victimDomain), want: everywhere(mismatch)},
		{name: "name of the victim, IP and URI", leaf: a.with(victim, testpki.Options{
			IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, URIs: []string{"spiffe://" + victimDomain, "https://" + victimDomain + "/"},
		}), want: everywhere(mismatch)},
		{name: "domain of the victim as name", leaf: a.runtime(victimDomain, selfDomain), want: byVersion(notHis)},
		{name: "SAN of the victim, name of nobody", leaf: a.runtime("nobody", victimDomain), want: byVersion(notHis)},
		{name: "SAN of the victim, name in capitals", leaf: a.runtime("Runtime-B", victimDomain), want: byVersion(notHis)},
		{name: "SAN of the victim, a blank behind the name", leaf: a.runtime(victim+" ", victimDomain), want: byVersion(notHis)},
		{
			name: "SAN of the victim, name of self", leaf: a.runtime(self, victimDomain),
			want: byVersion(map[contract.Version]outcome{v1: forbidden(reasonOwnerMismatch), v2: mismatch, v3: forbidden(listener.ReasonSourceMismatch)}),
		},
		{
			name: "two names, of self and of the victim", want: everywhere(mismatch),
			leaf: a.with("", testpki.Options{DNSNames: []string{selfDomain}, Edit: func(c *x509.Certificate) {
				name := asn1.ObjectIdentifier{2, 5, 4, 3}
				c.Subject = pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: name, Value: self}, {Type: name, Value: victim}}}
			}}),
		},
	}

	return append(rows, a.registrations()...)
}

// registration is a runtime of its own, whose registration changes.
func (a *attacks) registration(name, domain string, leaf *tls.Certificate, change func(t *testing.T), want func(way, contract.Version) outcome) row {
	return row{
		leaf: leaf, triggers: name, want: want,
		event: func(v contract.Version) core.WatchEvent { return eventOf(v, name) },
		prepare: func(t *testing.T) {
			t.Helper()
			a.at.register(t, rig.Namespace, name, &domain)

			// As it is registered, it passes where it should.
			if change != nil {
				for w := range ways {
					if w.legitimate() {
						a.passes(t, w, leaf, name)
					}
				}

				change(t)
			}
		},
	}
}

// registrations are about what is registered in the control plane, and the cache that knows of it.
func (a *attacks) registrations() []row {
	v1, v2, v3 := contract.V1, contract.V2, contract.V3
	ambiguous := everywhere(forbidden(listener.ReasonDomainAmbiguous))
	missing := byVersion(map[contract.Version]outcome{
		v1: forbidden(listener.ReasonOwnerMissing), v2: forbidden(reasonRuntimeUnknown), v3: forbidden(reasonRuntimeUnknown),
	})
	annotate := func(name string, domain *string) func(t *testing.T) {
		return func(t *testing.T) { t.Helper(); a.at.annotate(t, name, domain) }
	}
	twin := func(namespace, name, domain string) func(t *testing.T) {
		return func(t *testing.T) { t.Helper(); a.at.register(t, namespace, name, &domain) }
	}
	named := func(title string, r row) row {
		r.name = title

		return r
	}
	plain := func(name string) *tls.Certificate { return a.runtime(name, name+".example.com") }
	change := func(title, name string, change func(t *testing.T), want func(way, contract.Version) outcome) row {
		return named(title, a.registration(name, name+".example.com", plain(name), change, want))
	}
	address := testpki.Options{IPs: []net.IP{net.IPv4(192, 0, 2, 7)}}
	uri := "spiffe://example.com/uri"

	return []row{
		change("owner deleted", "deleted", func(t *testing.T) { t.Helper(); a.at.remove(t, "deleted") }, missing),
		change("annotation removed", "removed", annotate("removed", nil), everywhere(forbidden(listener.ReasonDomainMissing))),
		change("annotation emptied", "emptied", annotate("emptied", new("")), everywhere(forbidden(listener.ReasonDomainEmpty))),
		change("annotation of a dot", "dot", annotate("dot", new(" . ")), everywhere(forbidden(listener.ReasonDomainEmpty))),
		change("annotation of another domain", "moved", annotate("moved", new("elsewhere.example.com")), everywhere(forbidden(listener.ReasonSANMismatch))),
		change("annotation with a blank", "blank", annotate("blank", new(" blank.example.com")), everywhere(forbidden(listener.ReasonSANMismatch))),
		change("annotation of a wildcard", "wild", annotate("wild", new("*.example.com")), everywhere(forbidden(listener.ReasonDomainWildcard))),
		named("wildcard registered, wildcard SAN", a.registration("wilder", "*.example.com", a.runtime("wilder", "*.example.com"), nil,
			everywhere(forbidden(listener.ReasonDomainWildcard)))),
		named("domain in other case and with a dot", a.registration("variant", "VARIANT.Example.com.", a.runtime("variant", "variant.example.COM"), nil,
			everywhere(passed))),
		change("domain registered twice", "twice", twin(rig.Namespace, "twice-2", "twice.example.com"), ambiguous),
		change("domain registered twice, in other case", "cases", twin(rig.Namespace, "cases-2", "CASES.example.com"), ambiguous),
		change("domain registered twice, with a dot", "dots", twin(rig.Namespace, "dots-2", "dots.example.com."), ambiguous),
		change("a domain that only looks the same", "blanks", twin(rig.Namespace, "blanks-2", "blanks.example.com "), everywhere(passed)),
		change("a namesake in another namespace", "namesake", twin("kube-public", "namesake", "namesake-2.example.com"),
			byVersion(map[contract.Version]outcome{
				v1: passed, v2: forbidden(listener.ReasonDomainAmbiguous), v3: forbidden(listener.ReasonDomainAmbiguous),
			})),
		named("IP address", a.registration("ip", "192.0.2.7", a.with("ip", address), annotate("ip", new("192.0.2.8")),
			everywhere(forbidden(listener.ReasonSANMismatch)))),
		named("IP address as a DNS name", a.registration("ip-text", "192.0.2.9", a.runtime("ip-text", "192.0.2.9"), nil,
			everywhere(forbidden(listener.ReasonSANMismatch)))),
		named("IP address registered twice, in two spellings", a.registration("ip-twice", "192.0.2.7", a.with("ip-twice", address),
			twin(rig.Namespace, "ip-twice-2", "::ffff:192.0.2.7"), ambiguous)),
		named("URI", a.registration("uri", uri, a.with("uri", testpki.Options{URIs: []string{uri}}), annotate("uri", new(uri+"/other")),
			everywhere(forbidden(listener.ReasonSANMismatch)))),
	}
}

// headers are sent along with the good certificate of self; nginx replaces them, and who is connected himself needs none.
func (a *attacks) headers() []row {
	good, bad := headerOf(a.victim), headerOf(leafOf(testpki.SelfSigned(victim, testpki.Options{DNSNames: []string{victimDomain}})))
	pem := escaped(a.victim, 1)
	large := func(w way, v contract.Version) outcome {
		if w.nginx() {
			return nginxRefused
		}

		return asSelf(listener.ReasonHeaderTooLarge)(w, v)
	}
	with := func(name, reason string, lines ...string) row {
		return row{name: name, leaf: a.self, header: xfcc(lines...), want: asSelf(reason)}
	}
	spelled := func(name string, header http.Header) row {
		return row{name: name, leaf: a.self, header: header, want: asSelf(listener.ReasonNoCertificate)}
	}
	// A certificate that the trusted CA has issued, and whose subject tries to leave the quotes.
	smuggler := func(subject string) *tls.Certificate {
		return a.with(self, testpki.Options{DNSNames: []string{selfDomain}, Edit: func(c *x509.Certificate) { c.Subject.Locality = []string{subject} }})
	}
	smuggled := func(name, subject string) row {
		return row{name: name, leaf: smuggler(subject), want: ignored}
	}

	return []row{
		{name: "that of the victim", leaf: a.self, header: xfcc(good), want: func(w way, v contract.Version) outcome {
			if w == written { // It is the gateway's word.
				return ""
			}

			return ignored(w, v)
		}},
		a.belowIntermediate(),
		with("that of the victim, then a bad one", listener.ReasonUntrustedChain, good+","+bad),
		with("two lines", listener.ReasonUntrustedChain, good, bad),
		with("two certificates in one element", listener.ReasonMalformedHeader, headerOf(a.self)+`;Cert="`+pem+`"`),
		with("a Cert inside a quoted Subject", listener.ReasonUntrustedChain, strings.Replace(bad, "CN=somebody", `CN=x\";Cert=\"`+pem, 1)),
		with("a Subject that is not closed", listener.ReasonMalformedHeader, `Subject="CN=x,`+good),
		with("the Hash of another", listener.ReasonHashMismatch, `Hash=`+hashOf(a.self)+`;Cert="`+pem+`"`),
		with("broken URL encoding", listener.ReasonMalformedCertificate, `Cert="`+pem+`%"`),
		with("broken PEM", listener.ReasonMalformedCertificate, `Cert="`+strings.Replace(pem, "END", "ENT", 1)+`"`),
		with("half a PEM", listener.ReasonMalformedCertificate, `Cert="`+pem[:len(pem)/2]+`"`),
		with("empty", listener.ReasonMalformedHeader, ""),
		{name: "33 KiB", closed: true, leaf: a.self, header: xfcc(`Subject="` + strings.Repeat("x", 33<<10) + `",` + good), want: large},
		spelled("in lower case, with underscores", http.Header{"x_forwarded_client_cert": {good}}),
		spelled("under other names", http.Header{"X-Forwarded-Client-Cert2": {good}, "Forwarded-Client-Cert": {good}, "X-Client-Cert": {pem}}),
		{
			name: "in lower case", leaf: a.self, header: http.Header{"x-forwarded-client-cert": {good}},
			want: func(w way, v contract.Version) outcome {
				if w == written {
					return "" // It is the same header.
				}

				return ignored(w, v)
			},
		},
		{
			name: "as a trailer", closed: true, leaf: a.self, header: http.Header{}, trailer: xfcc(good),
			want: asSelf(listener.ReasonNoCertificate),
		},
		{
			name: "named as hop by hop", http1: true, leaf: a.self, header: http.Header{"Connection": {listener.HeaderXFCC}, listener.HeaderXFCC: {good}},
			want: func(w way, v contract.Version) outcome {
				if w == written {
					return ""
				}

				return ignored(w, v)
			},
		},
		smuggled(`certificate with a subject of ";Cert="`, `";Cert="`+pem),
		smuggled(`certificate with a subject of ",Cert="`, `",`+unfinished(a.victim)),
		smuggled(`certificate with a subject of \",Cert="`, `\",`+unfinished(a.victim)),
		smuggled("certificate with a subject of line breaks", "\r\n"+listener.HeaderXFCC+": "+good+"\r\n"),
	}
}

// belowIntermediate is no attack. nginx forwards the leaf alone, so that the intermediate must be in the listener's bundle, too; a gateway
// that writes Chain, as Envoy can, needs no such thing.
func (a *attacks) belowIntermediate() row {
	below := must(a.ca.runtimes.Intermediate("runtimes below", testpki.Options{}))
	leaf := leafOf(below.Client(self, testpki.Options{DNSNames: []string{selfDomain}}))

	return row{
		name: "none, with an intermediate", leaf: leaf, header: xfcc(`Cert="` + escaped(leaf, 1) + `";Chain="` + escaped(leaf, len(leaf.Certificate)) + `"`),
		event: func(v contract.Version) core.WatchEvent { return eventOf(v, self) },
		want: func(w way, _ contract.Version) outcome {
			switch {
			case w.nginx():
				return unauthenticated(listener.ReasonUntrustedChain)
			case w.legitimate():
				return passed
			default:
				return untrustedProxy
			}
		},
	}
}

// impersonations go to the pod that stands behind the gateway, with a certificate and the header of the victim.
func (a *attacks) impersonations() []row {
	named := testpki.Options{DNSNames: []string{gatewayName}}
	only := func(past way) func(way, contract.Version) outcome {
		return func(w way, _ contract.Version) outcome {
			if w == past {
				return untrustedProxy
			}

			return ""
		}
	}
	shows := func(name string, leaf *tls.Certificate) row {
		return row{name: name, leaf: leaf, header: xfcc(headerOf(a.victim)), want: only(pastCertificate)}
	}
	says := func(name string, header http.Header) row {
		header.Set(listener.HeaderXFCC, headerOf(a.victim))

		return row{name: name, header: header, want: only(pastAddress)}
	}
	edited := func(edit func(*testpki.Options)) *tls.Certificate {
		opts := named
		edit(&opts)

		return leafOf(a.ca.gateways.Client("gateway", opts))
	}
	another := must(testpki.NewCA("control plane", testpki.Options{}))

	return []row{
		shows("nobody", nil),
		shows("the runtime itself", a.self),
		shows("a runtime whose certificate has the gateway's name", a.runtime(self, gatewayName)),
		shows("another pod, of the same CA", leafOf(a.ca.gateways.Client("pod", testpki.Options{DNSNames: []string{"pod.default.svc"}}))),
		shows("another pod, the name as Common Name only", leafOf(a.ca.gateways.Client(gatewayName, testpki.Options{}))),
		shows("another pod, a wildcard that covers it", leafOf(a.ca.gateways.Client("pod", testpki.Options{DNSNames: []string{"*.istio-system.svc"}}))),
		shows("the gateway's name, of another CA", leafOf(another.Client("gateway", named))),
		shows("the gateway's name, of the servers' CA", leafOf(a.ca.servers.Client("gateway", named))),
		shows("the gateway's name, self-signed", leafOf(testpki.SelfSigned("gateway", named))),
		shows("the gateway's name, expired", edited(func(o *testpki.Options) { o.NotAfter = time.Now().Add(-time.Minute) })),
		shows("the gateway's name, for servers only", edited(func(o *testpki.Options) { o.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
		says("an address in X-Forwarded-For", http.Header{"X-Forwarded-For": {gatewayAddress}, "X-Real-Ip": {gatewayAddress}}),
		says("an address in Forwarded", http.Header{"Forwarded": {"for=" + gatewayAddress + ";by=" + gatewayAddress}}),
	}
}
