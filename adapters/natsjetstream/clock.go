package natsjetstream

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// clockInterval is the time between two measurements of the server's clock.
	clockInterval = time.Minute
	// clockTimeout bounds one measurement.
	clockTimeout = time.Second
)

// clock knows by how much the clock of the NATS server differs from that of this process. So the
// age of a message is the difference of two times of one clock. It is safe for concurrent use.
type clock struct {
	now func() time.Time

	mu       sync.Mutex
	measured time.Time
	ahead    time.Duration
}

func newClock(now func() time.Time) *clock { return &clock{now: now} }

// age returns the time since the stream stored a message.
func (c *clock) age(stored time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().Add(c.ahead).Sub(stored)
}

// sync measures the clock of a stream, at most once in clockInterval. Without an answer in time,
// the last measurement stays.
func (c *clock) sync(ctx context.Context, stream jetstream.Stream) {
	began := c.now()
	if !c.isDue(began) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	if info, err := stream.Info(ctx); err == nil {
		c.learn(began, info)
	}
}

func (c *clock) isDue(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := now.Sub(c.measured)
	return since < 0 || since >= clockInterval
}

// learn takes the time in an answer to a request that began at a time. A server before 2.10 sends
// none: its clock must then agree with that of this process.
func (c *clock) learn(began time.Time, info *jetstream.StreamInfo) {
	ended := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.measured, c.ahead = ended, 0
	if !info.TimeStamp.IsZero() {
		c.ahead = info.TimeStamp.Sub(began.Add(ended.Sub(began) / 2))
	}
}
