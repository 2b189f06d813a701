package keys_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// handshake connects a client and a server and sends a byte each way. It returns the state of the
// server, or the error of the end that refused.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()

	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()

	type outcome struct {
		state tls.ConnectionState
		err   error
	}
	result := make(chan outcome, 1)

	go func() {
		raw, err := listener.Accept()
		if err != nil {
			result <- outcome{err: err}
			return
		}

		conn := tls.Server(raw, server)
		defer conn.Close()

		_ = conn.SetDeadline(time.Now().Add(patience))
		if err = conn.Handshake(); err == nil {
			_, err = conn.Write([]byte{1})
		}

		result <- outcome{conn.ConnectionState(), err}
		_, _ = conn.Read(make([]byte, 1))
	}()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	conn, clientErr := (&tls.Dialer{Config: client}).DialContext(ctx, "tcp", listener.Addr().String())
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}

	got := <-result
	return got.state, errors.Join(got.err, clientErr)
}

func client(source keys.Source) *tls.Config {
	return must(keys.ClientTLSConfig(source, "localhost"))
}

// Both ends refuse an expired, foreign or missing certificate, a wrong name or use, and TLS before
// 1.3.
func TestHandshake(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	strangers := newPKI(t)
	past := time.Now().Add(-time.Minute)

	// NewMaterial would refuse this material.
	withLeaf := func(leaf *testpki.Leaf) *keys.Material {
		certificate := leaf.TLS
		return &keys.Material{Certificate: &certificate, Roots: ends.ca.Pool()}
	}
	intermediate := must(ends.ca.Intermediate("intermediate", testpki.Options{}))
	anonymous := &tls.Config{RootCAs: ends.ca.Pool(), ServerName: "localhost"}
	issued := func(ca *testpki.CA, opts testpki.Options) *keys.Material {
		return withLeaf(must(ca.Client("a", opts)))
	}
	strange := &keys.Material{Certificate: strangers.client.Certificate, Roots: ends.client.Roots}
	selfSigned := withLeaf(must(testpki.SelfSigned("a", testpki.Options{})))
	expiredServer := withLeaf(must(ends.ca.Server("a", testpki.Options{NotAfter: past})))

	old := func(material *keys.Material) *tls.Config {
		return &tls.Config{
			RootCAs: material.Roots, ServerName: "localhost", MaxVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{*material.Certificate},
		}
	}

	bundle := must(keys.NewMaterial(ends.ca.PEM, nil, nil))
	certificate := &keys.Material{Certificate: ends.server.Certificate}
	server := keys.ServerTLSConfig
	webhook := keys.WebhookTLSConfig
	for name, tc := range map[string]struct {
		server, client *tls.Config
		refused        bool
	}{
		"mutual":                  {server(ends.server), client(ends.client), false},
		"by an intermediate":      {server(ends.server), client(issued(intermediate, testpki.Options{})), false},
		"no client certificate":   {server(ends.server), anonymous, true},
		"client of strangers":     {server(ends.server), client(strange), true},
		"self-signed client":      {server(ends.server), client(selfSigned), true},
		"expired client":          {server(ends.server), client(issued(ends.ca, testpki.Options{NotAfter: past})), true},
		"server as client":        {server(ends.server), client(ends.server), true},
		"server of strangers":     {server(strangers.server), client(ends.client), true},
		"expired server":          {server(expiredServer), client(ends.client), true},
		"client as server":        {server(ends.client), client(ends.client), true},
		"wrong server name":       {server(ends.server), must(keys.ClientTLSConfig(ends.client, "elsewhere")), true},
		"old TLS client":          {server(ends.server), old(ends.client), true},
		"old TLS server":          {old(ends.server), client(ends.client), true},
		"webhook without CA":      {webhook(ends.server, nil), anonymous, false},
		"webhook, CA not loaded":  {webhook(ends.server, (*keys.Material)(nil)), anonymous, true},
		"webhook with CA":         {webhook(ends.server, ends.client), client(ends.client), false},
		"webhook, no certificate": {webhook(ends.server, ends.client), anonymous, true},
		"webhook with another CA": {webhook(ends.server, strangers.client), client(ends.client), true},
		"webhook, names, no CA":   {webhook(ends.server, nil, "apiserver"), client(ends.client), true},
		"no serving certificate":  {server(bundle), client(ends.client), true},
		"no material":             {server((*keys.Material)(nil)), client(ends.client), true},
		"no client CA":            {server(certificate), client(ends.client), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			state, err := handshake(t, tc.server, tc.client)
			if (err != nil) != tc.refused {
				t.Errorf("refused: %v, want refused: %v", err, tc.refused)
			}
			if err == nil && state.Version != tls.VersionTLS13 {
				t.Errorf("version %x, want TLS 1.3", state.Version)
			}
		})
	}
}

// A client without a certificate or without CAs would fail in each handshake.
func TestClientTLSConfigNeedsBoth(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	for name, source := range map[string]*keys.Material{
		"nothing": nil, "no certificate": {Roots: ends.client.Roots}, "no CA": {Certificate: ends.client.Certificate},
	} {
		if _, err := keys.ClientTLSConfig(source, "localhost"); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

// A server uses new material immediately, also for sessions of the former one.
func TestServerUsesNewMaterial(t *testing.T) {
	t.Parallel()

	first := newPKI(t)
	second := newPKI(t)
	source := &switchSource{}
	source.set(first.server)
	server := keys.ServerTLSConfig(source)
	config := client(first.client) // keeps its sessions

	for _, resumed := range []bool{false, true} {
		state, err := handshake(t, server, config)
		if err != nil || state.DidResume != resumed {
			t.Fatalf("resumed: %v, want %v: %v", state.DidResume, resumed, err)
		}
	}

	// The same serving certificate, but another client CA.
	source.set(&keys.Material{Certificate: first.server.Certificate, Roots: second.server.Roots})
	if _, err := handshake(t, server, config); err == nil {
		t.Error("a session of a CA that is trusted no more was resumed")
	}

	source.set(second.server)
	if _, err := handshake(t, server, client(second.client)); err != nil {
		t.Errorf("with a new serving certificate: %v", err)
	}
}

// The serving certificate and the client CAs come from two sources that change at different times.
// A change of one source takes effect without a change of the other.
func TestServerFollowsBothSources(t *testing.T) {
	t.Parallel()

	first := newPKI(t)
	second := newPKI(t)
	serving := &switchSource{}
	clients := &switchSource{}
	serving.set(first.server)
	clients.set(first.server)
	server := keys.WebhookTLSConfig(serving, clients)

	// trusting is a client with the certificate of one PKI that accepts the server of another.
	trusting := func(client, server pki) *tls.Config {
		config := must(keys.ClientTLSConfig(client.client, "localhost"))
		config.RootCAs = server.server.Roots
		config.ClientSessionCache = nil

		return config
	}

	check := func(step string, client, wanted pki, accepted bool) {
		t.Helper()
		if _, err := handshake(t, server, trusting(client, wanted)); (err == nil) != accepted {
			t.Errorf("%s: accepted is %t, want %t: %v", step, err == nil, accepted, err)
		}
	}

	check("at the start, a client of the first CA", first, first, true)
	check("at the start, a client of the second CA", second, first, false)

	clients.set(second.server)
	check("after a change of the client CAs, a client of the removed CA", first, first, false)
	check("after a change of the client CAs, a client of the new CA", second, first, true)

	serving.set(second.server)
	check("after a change of the serving certificate, a client that knows the former one", second, first, false)
	check("after a change of the serving certificate, a client that knows the new one", second, second, true)
}

// A server with fewer protocols than the default offers only those of the caller.
func TestServerNegotiatesNextProtos(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)

	for _, protocols := range [][]string{{"h2", "http/1.1"}, {"http/1.1"}} {
		server := keys.ServerTLSConfig(ends.server)
		server.NextProtos = protocols
		config := client(ends.client)
		config.NextProtos = []string{"h2", "http/1.1"}

		state, err := handshake(t, server, config)
		if err != nil || state.NegotiatedProtocol != protocols[0] {
			t.Errorf("negotiated %q, want %q: %v", state.NegotiatedProtocol, protocols[0], err)
		}
	}
}

// The CA of a cluster issues the certificates of its API server and of all its kubelets.
func TestWebhookAllowsNamedClients(t *testing.T) {
	t.Parallel()

	const apiServer, apiServerURI = "kube-apiserver-kubelet-client", "spiffe://cluster/apiserver"
	ends := newPKI(t)
	issue := func(commonName string, opts testpki.Options) *keys.Material {
		return material(t, must(ends.ca.Client(commonName, opts)), ends.ca)
	}
	kubelet := issue("system:node:worker-1", testpki.Options{DNSNames: []string{"worker-1"}})

	for name, tc := range map[string]struct {
		client  *keys.Material
		names   []string
		refused bool
	}{
		"any client without names":   {kubelet, nil, false},
		"API server":                 {issue(apiServer, testpki.Options{}), []string{"front-proxy", apiServer}, false},
		"kubelet":                    {kubelet, []string{apiServer}, true},
		"DNS name":                   {kubelet, []string{"Worker-1"}, false},
		"URI":                        {issue("", testpki.Options{URIs: []string{apiServerURI}}), []string{apiServerURI}, false},
		"part of a name":             {kubelet, []string{"worker"}, true},
		"empty name, no Common Name": {issue("", testpki.Options{}), []string{""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := keys.WebhookTLSConfig(ends.server, ends.server, tc.names...)
			config := client(tc.client) // It keeps sessions: the second handshake resumes one.

			for range 2 {
				if _, err := handshake(t, server, config); (err != nil) != tc.refused {
					t.Errorf("refused: %v, want refused: %v", err, tc.refused)
				}
			}
		})
	}
}

// A session that is older than the names must not circumvent them.
func TestResumedSessionIsCheckedForNames(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	config := client(ends.client)
	allow := func(names ...string) *tls.Config {
		server := keys.WebhookTLSConfig(ends.server, ends.server, names...)
		server.SetSessionTicketKeys([][32]byte{{1}})
		return server
	}

	_ = must(handshake(t, allow(), config))
	if state, err := handshake(t, allow(runtime1), config); err != nil || !state.DidResume {
		t.Fatalf("resumed: %v, %v; want a resumed session", state.DidResume, err)
	}
	if _, err := handshake(t, allow("another"), config); err == nil {
		t.Error("a session of a client with another name was resumed")
	}
}

// A listener that checks each request uses new CAs immediately, and none without material.
func TestRootsArePresentOnes(t *testing.T) {
	t.Parallel()

	first := newPKI(t)
	second := newPKI(t)
	source := &switchSource{}
	source.set(first.server)

	roots := keys.Roots(source)
	if roots() != first.server.Roots {
		t.Error("not the CAs of the material in use")
	}

	source.set(second.server)
	if roots() != second.server.Roots {
		t.Error("not the CAs of the new material")
	}
	if keys.Roots((*keys.Material)(nil)) != nil {
		t.Error("CAs without material, want nil")
	}
}

// patience bounds the time of prompt operations on a busy machine.
const patience = 2 * time.Minute

const runtime1 = "skr-1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// pki is a CA with material for both ends.
type pki struct {
	ca             *testpki.CA
	client, server *keys.Material
}

func newPKI(t testing.TB) pki {
	t.Helper()

	ca := must(testpki.NewCA("test", testpki.Options{}))
	return pki{
		ca:     ca,
		client: material(t, must(ca.Client(runtime1, testpki.Options{})), ca),
		server: material(t, must(ca.Server("kcp", testpki.Options{})), ca),
	}
}

func material(t testing.TB, leaf *testpki.Leaf, cas ...*testpki.CA) *keys.Material {
	t.Helper()
	return must(keys.NewMaterial(testpki.Bundle(cas...), leaf.CertPEM, leaf.KeyPEM))
}

// switchSource is material that a test replaces.
type switchSource struct {
	atomic.Pointer[keys.Material]
}

func (s *switchSource) set(material *keys.Material) { s.Store(material) }

func (s *switchSource) Material() (*keys.Material, error) { return s.Load().Material() }
