package runtimeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
)

const (
	// checkTimeout bounds the check of the control plane.
	checkTimeout = 10 * time.Second
	// refusalTimeout is how long the check waits for the refusal of the client certificate. In TLS
	// 1.3 it comes after the handshake of the client (RFC 8446, section 4.4.2.4).
	refusalTimeout = time.Second
)

// controlPlaneCheck connects to the control plane once, and logs the result. Without pending
// events, a wrong address would not be noticed before the first change.
func (b *builder) controlPlaneCheck() component {
	return component{"check of the control plane", func(ctx context.Context) error {
		if b.parts.Transport == nil {
			b.checkControlPlane(ctx)
		}
		<-ctx.Done()
		return nil
	}}
}

func (b *builder) checkControlPlane(ctx context.Context) {
	err := dial(ctx, b.keys.client, b.opts.ControlPlane)
	switch address := slog.String("address", b.opts.ControlPlane.Address); {
	case err == nil:
		b.log.InfoContext(ctx, "control plane accepts the connection", address)
	case ctx.Err() == nil:
		b.log.WarnContext(ctx, "cannot connect to the control plane: events are kept until it works",
			address, slog.Any("error", err))
	}
}

// dial makes a TLS connection with the client certificate, and closes it.
func dial(ctx context.Context, keys httpmtls.Source, to ControlPlane) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	target, err := url.Parse("https://" + strings.TrimPrefix(to.Address, "https://"))
	if err != nil {
		return fmt.Errorf("address: %w", err)
	}

	name, port := target.Hostname(), target.Port()
	if port == "" {
		port = "443"
	}

	address := net.JoinHostPort(name, port)
	if to.ServerName != "" {
		name = to.ServerName
	}

	config, err := httpmtls.ClientTLSConfig(keys, name)
	if err != nil {
		return err
	}

	config.NextProtos = []string{"h2", "http/1.1"}

	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close() // The result is known.

	return awaitRefusal(ctx, conn)
}

// awaitRefusal returns the error of a server that refuses the client certificate. A server that
// accepts it sends nothing, or the first frame of HTTP/2.
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
