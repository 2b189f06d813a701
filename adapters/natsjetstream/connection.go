package natsjetstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/runtime-watcher/runtime-watcher/core"
)

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

// logStatus logs a change of the connection. It returns the time of the loss, zero while the
// connection is open.
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

// outage is the present failure to take the messages of one manager. The zero value is none.
type outage struct {
	*Consumer

	manager core.Manager
	reason  string
}

// began logs a failure, unless the last one had the same reason.
func (o *outage) began(ctx context.Context, err error) {
	reason := core.Reason(classify("", err))
	if reason == o.reason {
		return
	}
	o.reason = reason
	o.opts.Logger.WarnContext(ctx, "no messages from the stream, retrying",
		slog.String("manager", string(o.manager)), slog.Any("error", err))
}

func (o *outage) ended(ctx context.Context) {
	if o.reason == "" {
		return
	}
	o.reason = ""
	o.opts.Logger.InfoContext(ctx, "messages from the stream again", slog.String("manager", string(o.manager)))
}
