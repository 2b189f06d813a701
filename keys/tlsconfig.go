package keys

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// sessionCache bounds the sessions that a client keeps. It has one server and few connections.
const sessionCache = 8

// ClientTLSConfig returns the configuration of a client with a certificate, for a server named
// serverName. It uses the current generation of source permanently: after a rotation, make another
// configuration with a new transport, as a forwarder does. It fails without a certificate or
// without CAs.
func ClientTLSConfig(source Source, serverName string) (*tls.Config, error) {
	if option.IsNil(source) {
		return nil, errNoMaterial
	}

	material, err := source.Material()
	if err != nil {
		return nil, fmt.Errorf("keys: material for a TLS client: %w", err)
	}
	if material.Certificate == nil || material.Roots == nil {
		return nil, errors.New("keys: material for a TLS client: want a certificate with its key and a CA bundle")
	}

	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    material.Roots,
		// Sent even if the server does not name our CA: its list may be outdated during a rotation.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return material.Certificate, nil
		},
		// A resumed session saves the exchange of certificates.
		ClientSessionCache: tls.NewLRUClientSessionCache(sessionCache),
	}, nil
}

// ServerTLSConfig returns the configuration of a server that requires a client certificate from one
// of the CAs of source. Each handshake uses the current generation and fails if there is no
// generation. Open connections stay open, so a listener should check each request against the
// current CAs: see [Roots].
func ServerTLSConfig(source Source) *tls.Config {
	return WebhookTLSConfig(source, source)
}

// WebhookTLSConfig returns the configuration of a server with the certificate of serving. The
// server requires a client certificate from one of the CAs of clients, or no client certificate if
// clients is nil. Each handshake uses the current generations.
//
// With clientNames, the Common Name or a DNS or URI SAN of the client certificate must equal one of
// these names. Set clientNames if the CA also has other clients: the CA of a cluster also issues
// the certificates of its kubelets.
//
// It offers HTTP/2 and HTTP/1.1. For a [net/http.Server] with only one of these protocols, also set
// NextProtos before the first use.
func WebhookTLSConfig(serving, clients Source, clientNames ...string) *tls.Config {
	server := &server{serving: serving, clients: clients, names: clientNames}
	server.base = &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2", "http/1.1"},
		GetConfigForClient: server.configForClient,
	}

	return server.base
}

// Roots returns a function that returns the current CAs of source, or nil if there are no CAs. A
// listener checks each request against these CAs, so that requests on open connections are also
// refused after a CA has been removed. If source is nil, Roots returns nil.
func Roots(source Source) func() *x509.CertPool {
	if option.IsNil(source) {
		return nil // A listener refuses it at its set-up.
	}
	return func() *x509.CertPool {
		material, err := source.Material()
		if err != nil {
			return nil
		}
		return material.Roots
	}
}

// server makes one configuration per generation. It is safe for concurrent use.
type server struct {
	serving, clients Source
	names            []string
	base             *tls.Config

	last atomic.Pointer[serverGeneration]
}

type serverGeneration struct {
	serving, clients *Material
	config           *tls.Config
}

// configForClient implements [tls.Config.GetConfigForClient]. Handshakes of one generation share
// the result.
func (s *server) configForClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	serving, err := s.servingMaterial()
	if err != nil {
		return nil, err
	}

	clients, err := s.clientMaterial()
	if err != nil {
		return nil, err
	}

	// Concurrent handshakes may make the same configuration twice, which does no harm.
	last := s.last.Load()
	if last == nil || last.serving != serving || last.clients != clients {
		last = &serverGeneration{serving: serving, clients: clients, config: s.configOf(serving, clients)}
		s.last.Store(last)
	}

	return last.config, nil
}

func (s *server) servingMaterial() (*Material, error) {
	material, err := s.serving.Material()
	if err != nil {
		return nil, fmt.Errorf("keys: material for a TLS server: %w", err)
	}
	if material.Certificate == nil {
		return nil, errors.New("keys: material for a TLS server: want a certificate with its key")
	}
	return material, nil
}

func (s *server) clientMaterial() (*Material, error) {
	if s.clients == nil {
		// Names of certificates that are not verified prove nothing.
		return nil, option.Unless(len(s.names) == 0,
			"keys: names of TLS clients without CAs of TLS clients: want both or no names")
	}

	material, err := s.clients.Material()
	if err != nil {
		return nil, fmt.Errorf("keys: CAs of TLS clients: %w", err)
	}
	if material.Roots == nil {
		return nil, errors.New("keys: CAs of TLS clients: want a CA bundle")
	}

	return material, nil
}

// configOf makes the configuration for one generation on both sides.
func (s *server) configOf(serving, clients *Material) *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The caller may have changed NextProtos before the first use.
		NextProtos:   slices.Clone(s.base.NextProtos),
		Certificates: []tls.Certificate{*serving.Certificate},
	}
	if clients == nil {
		return config
	}

	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs = clients.Roots
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return s.verifyClient(state, clients.Roots)
	}

	return config
}

// verifyClient runs after each handshake, including those that resume a session.
func (s *server) verifyClient(state tls.ConnectionState, roots *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("keys: no client certificate")
	}
	if err := verifyName(state.PeerCertificates[0], s.names); err != nil {
		return err
	}
	return verifyResumed(state, roots)
}

// verifyResumed checks a session that may be older than roots. Not every release of Go does.
func verifyResumed(state tls.ConnectionState, roots *x509.CertPool) error {
	if !state.DidResume {
		return nil
	}

	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}

	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("keys: client certificate of a resumed session: %w", err)
	}

	return nil
}

// verifyName allows every certificate if there are no names. An empty name matches no certificate.
func verifyName(certificate *x509.Certificate, allowed []string) error {
	matches := func(name string) bool { return name != "" && hasName(certificate, name) }
	return option.Unless(len(allowed) == 0 || slices.ContainsFunc(allowed, matches),
		"keys: client certificate of %.64q: want one of the allowed names", certificate.Subject.CommonName)
}

// hasName compares DNS names without regard to case (RFC 5280, section 4.2.1.6), all else exactly.
func hasName(certificate *x509.Certificate, name string) bool {
	return certificate.Subject.CommonName == name ||
		slices.ContainsFunc(certificate.DNSNames, func(dns string) bool { return strings.EqualFold(dns, name) }) ||
		slices.ContainsFunc(certificate.URIs, func(uri *url.URL) bool { return uri.String() == name })
}
