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

// clock continues the clock of the NATS server. So the age of a message is the difference of two
// times of one clock. A step of the clock of this process has no effect: only the time since the
// measurement counts, which is that of its monotonic clock. It is safe for concurrent use.
type clock struct {
	now func() time.Time

	mu sync.Mutex
	// server is the time of the server at the time measured.
	server, measured time.Time
}

func newClock(now func() time.Time) *clock { return &clock{now: now} }

// age returns the time since the stream stored a message.
func (c *clock) age(stored time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(c.now().Sub(c.measured)).Sub(stored)
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
	return now.Sub(c.measured) >= clockInterval
}

// learn takes the time in an answer to a request that began at a time. The server read its clock in
// the middle of the request. A server before 2.10 sends no time: its clock must then agree with that
// of this process.
func (c *clock) learn(began time.Time, info *jetstream.StreamInfo) {
	middle := began.Add(c.now().Sub(began) / 2)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.measured = info.TimeStamp, middle
	if info.TimeStamp.IsZero() {
		c.server = middle
	}
}
