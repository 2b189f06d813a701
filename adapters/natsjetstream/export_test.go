package natsjetstream

import (
	"context"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// ReceiveWith replaces verifier and handlers by a far end for whole batches.
func (c *Consumer) ReceiveWith(farEnd core.Forwarder) {
	c.receive = func(ctx context.Context, d *delivery) verdict {
		return verdict{err: farEnd.Forward(ctx, d.manager, d.batch)}
	}
}

// ParseSubject is for tests of subjects.
var ParseSubject = parseSubject
