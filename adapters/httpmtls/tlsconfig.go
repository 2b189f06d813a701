package httpmtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// sessionCache is how many sessions a client keeps: it talks to one server, on a few connections.
const sessionCache = 8

// ClientTLSConfig returns the configuration of a client that proves who it is and checks the server's certificate against
// serverName. It holds the generation that source has now, for good: make a new one, with a new transport, when
// the material has changed, as [Forwarder] does. It fails when source does, or lacks the certificate or the CAs.
func ClientTLSConfig(source Source, serverName string) (*tls.Config, error) {
	material, err := source.Material()
	if err != nil {
		return nil, fmt.Errorf("httpmtls: material for a TLS client: %w", err)
	}

	if material.Certificate == nil || material.Roots == nil {
		return nil, errors.New("httpmtls: material for a TLS client: want a certificate with its key and a CA bundle")
	}

	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    material.Roots,
		// Sent even when the server does not name our CA: while CAs rotate, the server's list is the last thing to trust.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return material.Certificate, nil },
		ClientSessionCache:   tls.NewLRUClientSessionCache(sessionCache),
	}, nil
}

// ServerTLSConfig returns the configuration of a server that demands a client certificate of one of the CAs of source. Each handshake
// gets the generation of that moment, and fails when there is none; connections that exist stay.
func ServerTLSConfig(source Source) *tls.Config {
	return WebhookTLSConfig(source, source)
}

// WebhookTLSConfig returns the configuration of a server with the certificate of serving. It demands a client certificate of one
// of the CAs of clients; when clients is nil, it asks for none. Both are taken anew at each handshake.
//
// It offers HTTP/2 and HTTP/1.1. Where a [net/http.Server] is to serve only one of them, set NextProtos of what is returned, too,
// before its first use: net/http can not reach the configurations that are made from it.
func WebhookTLSConfig(serving, clients Source) *tls.Config {
	server := &server{serving: serving, clients: clients}
	server.base = &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{protoHTTP2, protoHTTP1},
		GetConfigForClient: server.config,
		GetCertificate:     server.certificate,
	}

	return server.base
}

// The names of the protocols in the handshake (RFC 7301).
const (
	protoHTTP2 = "h2"
	protoHTTP1 = "http/1.1"
)

// server makes one configuration per generation.
type server struct {
	serving, clients Source
	base             *tls.Config

	last atomic.Pointer[serverGeneration]
}

type serverGeneration struct {
	serving, clients *Material
	config           *tls.Config
}

// certificate is never asked, because config always answers; but without it net/http demands certificate files.
func (s *server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	material, err := s.servingMaterial()
	if err != nil {
		return nil, err
	}

	return material.Certificate, nil
}

func (s *server) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	serving, err := s.servingMaterial()
	if err != nil {
		return nil, err
	}

	clients, err := s.clientMaterial()
	if err != nil {
		return nil, err
	}

	last := s.last.Load()
	if last == nil || last.serving != serving || last.clients != clients {
		last = &serverGeneration{serving: serving, clients: clients, config: s.generation(serving, clients)}
		s.last.Store(last)
	}

	return last.config, nil
}

func (s *server) servingMaterial() (*Material, error) {
	material, err := s.serving.Material()
	if err != nil {
		return nil, fmt.Errorf("httpmtls: material for a TLS server: %w", err)
	}

	if material.Certificate == nil {
		return nil, errors.New("httpmtls: material for a TLS server: want a certificate with its key")
	}

	return material, nil
}

func (s *server) clientMaterial() (*Material, error) {
	if s.clients == nil {
		return nil, nil //nolint:nilnil // No client certificate is asked for.
	}

	material, err := s.clients.Material()
	if err != nil {
		return nil, fmt.Errorf("httpmtls: CAs of TLS clients: %w", err)
	}

	if material.Roots == nil {
		return nil, errors.New("httpmtls: CAs of TLS clients: want a CA bundle")
	}

	return material, nil
}

func (s *server) generation(serving, clients *Material) *tls.Config {
	config := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   slices.Clone(s.base.NextProtos),
		Certificates: []tls.Certificate{*serving.Certificate},
	}

	if clients == nil {
		return config
	}

	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.ClientCAs = clients.Roots
	config.VerifyConnection = func(state tls.ConnectionState) error { return verifyResumed(state, clients.Roots) }

	return config
}

// verifyResumed checks the client's certificate of a resumed session against the CAs of now: the session may be of a time when
// others were trusted. A full handshake has checked it already. Not every release of Go does this by itself.
func verifyResumed(state tls.ConnectionState, roots *x509.CertPool) error {
	if !state.DidResume {
		return nil
	}

	if len(state.PeerCertificates) == 0 {
		return errors.New("httpmtls: resumed session without client certificate")
	}

	intermediates := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
	}

	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("httpmtls: client certificate of a resumed session: %w", err)
	}

	return nil
}
