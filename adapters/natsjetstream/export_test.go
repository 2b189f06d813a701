package natsjetstream

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// ReceiveWith replaces verifier and handlers by a far end for whole batches.
func (c *Consumer) ReceiveWith(farEnd core.Forwarder) {
	c.receive = func(ctx context.Context, r *intake.Request) result {
		err := farEnd.Forward(ctx, r.Manager, r.Batch)
		if err != nil {
			r.Return(err)
		}
		return result{err: err}
	}
}

// ParseSubject is for tests of subjects.
var ParseSubject = parseSubject

// CheckSubjects is for tests of streams.
var CheckSubjects = checkSubjects

// SetClock replaces the clock of the process.
func (c *Consumer) SetClock(now func() time.Time) { c.now = now }

// SetAckWait replaces the time after which the stream delivers a message again.
func (c *Consumer) SetAckWait(wait time.Duration) { c.ackWait = wait }

// SetStreams replaces the access to streams.
func (c *Consumer) SetStreams(streams jetstream.JetStream) { c.stream = streams }
