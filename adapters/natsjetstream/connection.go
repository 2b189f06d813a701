package natsjetstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	pingInterval  = 15 * time.Second
	reconnectWait = time.Second
	// noBuffer makes a publish fail immediately without a connection: the outbox keeps the events.
	noBuffer = -1
)

// ConnectOptions returns the options for the connection of a runtime's [Forwarder]. The connection
// never gives up, buffers nothing while it has no server, and receives answers under [InboxPrefix].
// After a rotation, [nats.Conn.ForceReconnect] presents the new certificate. You can append further
// options.
//
// The function keys returns the current client certificate and the CAs that may sign the server's
// certificate. It is called concurrently, for each new connection, and must return immediately.
func ConnectOptions(runtime core.RuntimeID, keys func() (*tls.Certificate, *x509.CertPool)) []nats.Option {
	return append(connectOptions(keys),
		nats.Name("runtime-watcher agent"),
		nats.CustomInboxPrefix(InboxPrefix(runtime)),
		nats.ReconnectBufSize(noBuffer),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // Forward returns the errors.
	)
}

// OperatorConnectOptions returns the options for the connection of the [Consumer] of a manager. The
// connection never gives up, even if no server answers at the start, and detects a frozen server
// within 45 s. It receives answers of the API under "_INBOX.operator.<manager>". The function keys
// has the same meaning as in [ConnectOptions]. You can append further options.
func OperatorConnectOptions(manager core.Manager, keys func() (*tls.Certificate, *x509.CertPool)) []nats.Option {
	return append(connectOptions(keys),
		nats.Name("runtime-watcher operator"),
		nats.CustomInboxPrefix(operatorInbox(manager)),
	)
}

func connectOptions(keys func() (*tls.Certificate, *x509.CertPool)) []nats.Option {
	return []nats.Option{
		nats.Secure(&tls.Config{
			MinVersion: tls.VersionTLS13,
			// Sent even if the server does not name our CA: its list may be outdated in a rotation.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				certificate, _ := keys()
				return certificate, nil
			},
		}),
		nats.ClientTLSConfig(nil, func() (*x509.CertPool, error) {
			_, roots := keys()
			return roots, nil
		}),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.PingInterval(pingInterval),
	}
}

// watchConnection logs each loss of the connection and each return, until ctx ends. A lost
// connection fails no request for messages, so nothing else reports it. A closed connection is an
// error, also on a replica that takes no messages.
func (c *Consumer) watchConnection(ctx context.Context) error {
	changes := c.conn.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer c.conn.RemoveStatusListener(changes)

	var lost time.Time
	for !c.conn.IsClosed() { // The client drops a change while ten others wait.
		select {
		case <-ctx.Done():
			return nil
		case status := <-changes:
			lost = c.logStatus(ctx, status, lost)
		}
	}

	if cause := c.conn.LastError(); cause != nil {
		return fmt.Errorf("natsjetstream: %w: %w", nats.ErrConnectionClosed, cause)
	}

	return fmt.Errorf("natsjetstream: %w", nats.ErrConnectionClosed)
}

// logStatus returns the time of the loss, zero while the connection is open.
func (c *Consumer) logStatus(ctx context.Context, status nats.Status, lost time.Time) time.Time {
	now := time.Now()
	switch {
	case status == nats.CONNECTED && !lost.IsZero():
		c.opts.Logger.InfoContext(ctx, "connected to the NATS server again",
			slog.String("server", c.conn.ConnectedUrlRedacted()), slog.Duration("after", now.Sub(lost)))
		return time.Time{}
	case status == nats.RECONNECTING && lost.IsZero():
		c.opts.Logger.WarnContext(ctx, "connection to the NATS server lost, reconnecting",
			slog.Any("error", cmp.Or(c.conn.LastError(), nats.ErrDisconnected)))
		return now
	default:
		return lost
	}
}
