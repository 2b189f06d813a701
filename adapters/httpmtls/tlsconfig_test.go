package httpmtls_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
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

func client(source httpmtls.Source) *tls.Config {
	return must(httpmtls.ClientTLSConfig(source, "localhost"))
}

func TestHandshake(t *testing.T) {
	t.Parallel()

	keys, strangers := newPKI(t), newPKI(t)
	past := time.Now().Add(-time.Minute)

	// NewMaterial would refuse this material.
	withLeaf := func(leaf *testpki.Leaf) *httpmtls.Material {
		certificate := leaf.TLS()

		return &httpmtls.Material{Certificate: &certificate, Roots: keys.ca.Pool()}
	}
	intermediate := must(keys.ca.Intermediate("intermediate", testpki.Options{}))

	anonymous := &tls.Config{RootCAs: keys.ca.Pool(), ServerName: "localhost"}
	issued := func(ca *testpki.CA, opts testpki.Options) *httpmtls.Material {
		return withLeaf(must(ca.Client("a", opts)))
	}
	strange := &httpmtls.Material{Certificate: strangers.client.Certificate, Roots: keys.client.Roots}
	selfSigned := withLeaf(must(testpki.SelfSigned("a", testpki.Options{})))
	expiredServer := withLeaf(must(keys.ca.Server("a", testpki.Options{NotAfter: past})))
	old := func(keys *httpmtls.Material) *tls.Config {
		return &tls.Config{
			RootCAs: keys.Roots, ServerName: "localhost", MaxVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{*keys.Certificate},
		}
	}
	bundle := must(httpmtls.NewMaterial(keys.ca.PEM(), nil, nil))
	certificate := &httpmtls.Material{Certificate: keys.server.Certificate}
	server, webhook := httpmtls.ServerTLSConfig, httpmtls.WebhookTLSConfig

	for name, tc := range map[string]struct {
		server, client *tls.Config
		refused        bool
	}{
		"mutual":                {server(keys.server), client(keys.client), false},
		"by an intermediate":    {server(keys.server), client(issued(intermediate, testpki.Options{})), false},
		"no client certificate": {server(keys.server), anonymous, true},
		"client of strangers":   {server(keys.server), client(strange), true},
		"self-signed client":    {server(keys.server), client(selfSigned), true},
		"expired client": {
			server(keys.server), client(issued(keys.ca, testpki.Options{NotAfter: past})),
			true,
		},
		"server as client":    {server(keys.server), client(keys.server), true},
		"server of strangers": {server(strangers.server), client(keys.client), true},
		"expired server":      {server(expiredServer), client(keys.client), true},
		"client as server":    {server(keys.client), client(keys.client), true},
		"wrong server name": {
			server(keys.server), must(httpmtls.ClientTLSConfig(keys.client, "elsewhere")),
			true,
		},
		"old TLS client":          {server(keys.server), old(keys.client), true},
		"old TLS server":          {old(keys.server), client(keys.client), true},
		"webhook without CA":      {webhook(keys.server, nil), anonymous, false},
		"webhook with CA":         {webhook(keys.server, keys.client), client(keys.client), false},
		"webhook, no certificate": {webhook(keys.server, keys.client), anonymous, true},
		"webhook with another CA": {webhook(keys.server, strangers.client), client(keys.client), true},
		"no serving certificate":  {server(bundle), client(keys.client), true},
		"no material":             {server((*httpmtls.Material)(nil)), client(keys.client), true},
		"no client CA":            {server(certificate), client(keys.client), true},
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

func TestClientTLSConfigNeedsBoth(t *testing.T) {
	t.Parallel()

	keys := newPKI(t)

	for name, source := range map[string]*httpmtls.Material{
		"nothing": nil, "no certificate": {Roots: keys.client.Roots}, "no CA": {Certificate: keys.client.Certificate},
	} {
		if _, err := httpmtls.ClientTLSConfig(source, "localhost"); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

func TestServerUsesNewMaterial(t *testing.T) {
	t.Parallel()

	first, second := newPKI(t), newPKI(t)
	source := &switchSource{}
	source.set(first.server)

	server := httpmtls.ServerTLSConfig(source)

	expect := func(name string, keys pki, refused bool) {
		t.Helper()

		if _, err := handshake(t, server, client(keys.client)); (err != nil) != refused {
			t.Errorf("%s: refused: %v, want refused: %v", name, err, refused)
		}
	}

	expect("before", first, false)
	expect("before", second, true)
	source.set(second.server)
	expect("after", first, true)
	expect("after", second, false)
}

func TestResumedSessionIsCheckedAgain(t *testing.T) {
	t.Parallel()

	first, second := newPKI(t), newPKI(t)
	source := &switchSource{}
	source.set(first.server)

	server := httpmtls.ServerTLSConfig(source)
	config := client(first.client) // keeps its sessions

	for _, resumed := range []bool{false, true} {
		state, err := handshake(t, server, config)
		if err != nil || state.DidResume != resumed {
			t.Fatalf("resumed: %v, want %v: %v", state.DidResume, resumed, err)
		}
	}

	// The same serving certificate, but another client CA.
	source.set(&httpmtls.Material{Certificate: first.server.Certificate, Roots: second.server.Roots})

	if _, err := handshake(t, server, config); err == nil {
		t.Error("a session of a CA that is trusted no more was resumed")
	}
}

func TestServerNegotiatesNextProtos(t *testing.T) {
	t.Parallel()

	keys := newPKI(t)

	for _, protocols := range [][]string{{"h2", "http/1.1"}, {"http/1.1"}} {
		server := httpmtls.ServerTLSConfig(keys.server)
		server.NextProtos = protocols

		config := client(keys.client)
		config.NextProtos = []string{"h2", "http/1.1"}

		state, err := handshake(t, server, config)
		if err != nil || state.NegotiatedProtocol != protocols[0] {
			t.Errorf("negotiated %q, want %q: %v", state.NegotiatedProtocol, protocols[0], err)
		}
	}
}
