package listener_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// bomb returns a leaf and a chain that leads to no root. All certificates of the chain have one
// name and one key, so that each may have signed each other one.
func bomb(t *testing.T, length int) []*x509.Certificate {
	t.Helper()

	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: "bomb"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	last := *root
	last.Subject.CommonName = string(runtimeA)
	last.IsCA = false
	last.KeyUsage = x509.KeyUsageDigitalSignature
	last.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	var certs []*x509.Certificate
	for template := &last; len(certs) < length; template = root {
		der := must(x509.CreateCertificate(rand.Reader, template, root, key.Public(), key))(t)
		certs = append(certs, must(x509.ParseCertificate(der))(t))
	}

	return certs
}

// A sender cannot have one certificate verified again and again.
func TestBadChainsAreVerifiedOnce(t *testing.T) {
	t.Parallel()

	const again = 100
	ca := newAuthority(t, "ca")
	certs := bomb(t, 10)
	everywhere := listener.ProxyAddresses(netip.MustParsePrefix("0.0.0.0/0"))
	for name, peers := range map[string]listener.Peers{
		"connection": listener.FromTLS(ca.roots(), listener.PeerOptions{}),
		"header":     listener.FromXFCC(everywhere, ca.roots(), listener.PeerOptions{}),
		"proxy": listener.FromXFCC(
			listener.ProxyCertificate(ca.roots(), "gateway"), ca.roots(), listener.PeerOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			r := post("/v2/lifecycle/event", bodyV2)
			r.Header.Set(headerXFCC, `Chain="`+escapedPEM(certs...)+`"`)
			r.TLS = &tls.ConnectionState{PeerCertificates: certs}
			verify := func() time.Duration {
				began := time.Now()
				if _, err := peers.Peer(r); err == nil {
					t.Error("the chain was accepted")
				}
				return time.Since(began)
			}

			// The shortest one, as the machine may have no time for some.
			first := verify()
			shortest := time.Hour
			for range again {
				shortest = min(shortest, verify())
			}

			if shortest > first/5 {
				t.Errorf("later requests take %v, the first one %v: the chain is verified again", shortest, first)
			}
		})
	}
}

// A chain of more than 10 certificates is refused before it costs a verification.
func TestLongChainsAreNotVerified(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	for length, reason := range map[int]string{10: "", 11: "untrusted_chain"} {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			t.Parallel()

			issuer := ca
			chain := []*x509.Certificate{}
			for range length - 1 {
				issuer = issuer.intermediate(t, "below "+strconv.Itoa(len(chain)))
				chain = append(chain, issuer.Certificate)
			}

			r := requestOf(ca, issuer.client(t, string(runtimeA)))
			r.TLS.PeerCertificates = append(r.TLS.PeerCertificates, chain...)
			expectReason(t, "chain", listener.FromTLS(ca.roots(), listener.PeerOptions{}), r, reason)
		})
	}
}

// The chain of a connection is verified in the handshake, which waits for its slot, and not in a
// request.
func TestChainsAreVerifiedInTheHandshake(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	servers := newAuthority(t, "servers")
	plain := serverConfig(t, servers, tls.RequestClientCert, ca)
	inner := plain.Clone()
	inner.NextProtos = []string{"h2", "http/1.1"}
	reloaded := plain.Clone()
	reloaded.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return inner, nil }
	unchanged := plain.Clone()
	unchanged.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }

	for name, config := range map[string]*tls.Config{
		"config": plain, "config that is reloaded": reloaded, "config that stays": unchanged,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var verified atomic.Int64
			roots := ca.Pool()
			run := start(t, listener.FromTLS(func() *x509.CertPool {
				verified.Add(1)
				return roots
			}, listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{}, listener.Options{TLS: config})
			dial(t, run, servers, ca.client(t, string(runtimeA)).pair())
			eventually(t, func() bool { return verified.Load() > 0 })
		})
	}
}

// Reloaded configurations do not cost the sessions that clients resume.
func TestSessionsAreResumed(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "ca")
	servers := newAuthority(t, "servers")
	config := serverConfig(t, servers, tls.RequestClientCert, ca)
	inner := config.Clone()
	inner.NextProtos = []string{"h2", "http/1.1"}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return inner, nil }
	run := start(t, listener.FromTLS(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{},
		listener.Options{TLS: config})
	pair := ca.client(t, string(runtimeA)).pair()
	sessions := tls.NewLRUClientSessionCache(1)

	for n := range 2 {
		client := newClient(t, servers, true, pair)
		transport, _ := client.Transport.(*http.Transport)
		transport.TLSClientConfig.ClientSessionCache = sessions
		response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, nil)
		if response.StatusCode != http.StatusOK || response.TLS.DidResume != (n > 0) {
			t.Errorf("connection %d: answer %d, resumed: %v", n, response.StatusCode, response.TLS.DidResume)
		}
		client.CloseIdleConnections()
	}
}

// dial does the handshake, and sends nothing.
func dial(t *testing.T, run *running, servers *authority, pair tls.Certificate) {
	t.Helper()

	conn := must(net.Dial("tcp", run.address()))(t)
	t.Cleanup(func() { conn.Close() })
	client := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: servers.Pool(), ServerName: "127.0.0.1",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
}
