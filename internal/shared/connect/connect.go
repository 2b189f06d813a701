// Package connect makes single connections to a control plane, to find out whether it accepts them.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const (
	timeout = 10 * time.Second
	// refusalTimeout is how long a connection waits for the refusal of the client certificate. In
	// TLS 1.3 the refusal comes after the handshake of the client (RFC 8446, section 4.4.2.4).
	refusalTimeout = 3 * time.Second
)

// Target is a control plane.
type Target struct {
	// Address is host, host:port or https://host:port. The default port is 443.
	Address string
	// ServerName is expected in the server certificate. Default: the host of Address.
	ServerName string
	// Dial makes the TCP connection. Default: a [net.Dialer].
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// splitAddress returns host:port, and the name to expect in the certificate.
func (t Target) splitAddress() (address, name string, err error) {
	target, err := ParseAddress(t.Address)
	if err != nil {
		return "", "", fmt.Errorf("address: %w", err)
	}

	name = target.Hostname()
	port := target.Port()
	if port == "" {
		port = "443"
	}

	address = net.JoinHostPort(name, port)
	if t.ServerName == "" {
		return address, name, nil
	}

	name, err = ParseHost(t.ServerName)
	if err != nil {
		return "", "", fmt.Errorf("server name: %w", err)
	}

	return address, name, nil
}

// Dial makes a TLS connection with the client certificate of keys, and closes it. It takes at most
// 10 s.
func Dial(ctx context.Context, material keys.Source, to Target) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	conn, err := TCP(ctx, to)
	if err != nil {
		return err
	}

	return TLS(ctx, conn, material, to)
}

// TCP makes a TCP connection within 10 s.
func TCP(ctx context.Context, to Target) (net.Conn, error) {
	address, _, err := to.splitAddress()
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	dial := to.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}

	conn, err := dial(ctx, "tcp", address)
	return conn, reasons.Plain(err)
}

// TLS does a TLS handshake on conn with the client certificate of material, and closes conn. It
// waits up to 3 s for the refusal of the certificate, and takes at most 10 s in all.
func TLS(ctx context.Context, conn net.Conn, material keys.Source, to Target) error {
	defer conn.Close() // The result is known.

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	_, name, err := to.splitAddress()
	if err != nil {
		return err
	}

	config, err := keys.ClientTLSConfig(material, name)
	if err != nil {
		return err
	}

	config.NextProtos = []string{"h2", "http/1.1"}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return reasons.Plain(err)
	}

	return awaitRefusal(ctx, secured)
}

// ClockSkew returns how far the clock of this machine is ahead of the clock of the control plane.
// It reads the time of the control plane from the Date header of an answer, in whole seconds (RFC
// 9110, section 6.6.1). ClockSkew fails without such a header. It takes at most 10 s.
func ClockSkew(ctx context.Context, material keys.Source, to Target) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	address, name, err := to.splitAddress()
	if err != nil {
		return 0, err
	}

	config, err := keys.ClientTLSConfig(material, name)
	if err != nil {
		return 0, err
	}

	transport := &http.Transport{TLSClientConfig: config, DialContext: to.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, scheme+"://"+address+"/", http.NoBody)
	if err != nil {
		return 0, err
	}

	answer, err := transport.RoundTrip(request)
	if err != nil {
		return 0, reasons.Plain(err)
	}

	_ = answer.Body.Close() // The answer to a HEAD request has no body.

	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return 0, err
	}

	return time.Since(date).Truncate(time.Second), nil // The header contains whole seconds.
}

// awaitRefusal returns the error of a server that refuses the client certificate. A server that
// accepts the certificate sends nothing, or the first frame of HTTP/2.
func awaitRefusal(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()

	_ = conn.SetReadDeadline(time.Now().Add(refusalTimeout)) // It fails on a closed connection only.
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}

	return err
}

// ServingFaults returns the faults for which API servers reject the certificate of a webhook. See
// RFC 5280, sections 4.2.1.6 and 4.2.1.12. Every API server ignores the Common Name, as Go does.
// The chain is not checked.
func ServingFaults(leaf *x509.Certificate) (faults []string) {
	if !Allows(leaf, x509.ExtKeyUsageServerAuth) {
		faults = append(faults, "extended key usage without serverAuth, want serverAuth or none")
	}
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 {
		faults = append(faults, "no DNS name (SAN), want <service>.<namespace>.svc")
	}
	return faults
}

// Allows reports whether the extended key usage of a certificate is usage, any, or none at all.
func Allows(leaf *x509.Certificate, usage x509.ExtKeyUsage) bool {
	usages := leaf.ExtKeyUsage
	return len(usages)+len(leaf.UnknownExtKeyUsage) == 0 ||
		slices.Contains(usages, usage) || slices.Contains(usages, x509.ExtKeyUsageAny)
}
