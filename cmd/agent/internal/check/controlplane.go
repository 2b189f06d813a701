package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/connect"
)

// controlPlane checks the way to the control plane, from the name to the answer of its listener.
func (c *checker) controlPlane(ctx context.Context, link Link) {
	to := connect.Target{Address: c.opts.ControlPlane.Address, ServerName: c.opts.ControlPlane.ServerName}
	conn, err := connect.TCP(ctx, to)
	if err != nil {
		c.fail("connection", unreachable(err))
		c.skip("TLS", "no connection")
		c.skip("heartbeat", "no connection")
		return
	}
	c.ok("connection", "%s, at %s", to.Address, conn.RemoteAddr())
	if c.client == nil {
		_ = conn.Close()
		c.skip("TLS", "the key material cannot be used")
		c.skip("heartbeat", "the key material cannot be used")
		return
	}
	if link != nil {
		_ = conn.Close() // NATS begins with a line of the server, before the handshake.
		c.server(ctx, link)
		return
	}
	if err := connect.TLS(ctx, conn, c.client, to); err != nil {
		c.fail("TLS", untrusted(err))
		c.skip("heartbeat", "no TLS connection")
		return
	}
	c.ok("TLS", "the certificate of %s is trusted, and it accepts TLS_CERT", to.Address)
	c.heartbeats(ctx, core.ForwarderFunc(c.sendOnce))
}

// server checks the way through a NATS server, from the handshake to the answer of the operator.
func (c *checker) server(ctx context.Context, link Link) {
	over, stop, err := link()
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		c.fail("TLS", finding{
			err.Error(), "a user with a SAN of TLS_CERT as its name",
			"add the user of this runtime to the configuration of the NATS server, and reload it",
		})
	case err != nil:
		c.fail("TLS", untrusted(err))
	default:
		defer stop()
		c.ok("TLS", "the certificate of the NATS server is trusted, and it has a user for TLS_CERT")
		c.heartbeats(ctx, over)
		return
	}
	c.skip("heartbeat", "no connection to the NATS server")
}

func unreachable(err error) finding {
	f := finding{err.Error(), "an open port", "check KCP_ADDR, the listener or gateway, and the network policy"}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		f.want, f.action = "a host name that resolves", "check KCP_ADDR, and the DNS of this cluster"
	}
	return f
}

func untrusted(err error) finding {
	f := finding{found: err.Error()}
	switch {
	case isA[x509.HostnameError](err):
		f.want, f.action = "a certificate for the name of the control plane", "correct KCP_ADDR, or set KCP_SERVER_NAME"
	case isA[*tls.CertificateVerificationError](err):
		f.want, f.action = "a certificate that CA_CERT issued", "correct CA_CERT, or KCP_ADDR if it names another host"
	case isRemote(err):
		f.want = "a control plane that accepts TLS_CERT"
		f.action = "check the CA bundle of the listener or gateway, and the validity of TLS_CERT"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		f.want, f.action = "a TLS handshake within 10s", "check that the port of KCP_ADDR serves TLS, and the network"
	case isA[tls.RecordHeaderError](err):
		f.want, f.action = "TLS", "check the port in KCP_ADDR: this one speaks another protocol"
	case errors.Is(err, io.EOF):
		f.found, f.want = "the other end closed the connection without an answer", "TLS"
		f.action = "check the port in KCP_ADDR, the gateway, and its limits"
	default:
		f.want, f.action = "TLS 1.3", "check the port in KCP_ADDR, and the TLS versions of the gateway"
	}
	return f
}

// isRemote reports whether the other end refused: by a TLS alert, or by the end of a connection.
// In TLS 1.3 a server judges the client certificate after the handshake of the client. A client of
// NATS that writes at that moment meets the closed connection before it has read the alert.
func isRemote(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	closed := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
	return ok && op.Op == "remote error" || errors.Is(err, nats.ErrTLS) && closed
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
