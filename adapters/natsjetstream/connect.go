package natsjetstream

import (
	"crypto/tls"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	pingInterval  = 15 * time.Second
	reconnectWait = time.Second
	// noBuffer makes a publish fail at once without a connection: the outbox keeps the events.
	noBuffer = -1
)

// ConnectOptions returns the options for the connection of a runtime's [Forwarder]. The connection
// never gives up, buffers nothing without a server, and gets answers under [InboxPrefix]. The TLS
// configuration has the client certificate; its callbacks are asked for each new connection. After
// a rotation, [nats.Conn.ForceReconnect] presents the new certificate. Options of the caller may
// follow.
func ConnectOptions(runtime core.RuntimeID, config *tls.Config) []nats.Option {
	return []nats.Option{
		nats.Name("runtime-watcher agent"),
		nats.Secure(config),
		nats.CustomInboxPrefix(InboxPrefix(runtime)),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.ReconnectBufSize(noBuffer),
		nats.PingInterval(pingInterval),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // Forward returns the errors.
	}
}
