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

// clock continues the clock of the leader of one stream, which stamps the messages. So the age of a
// message is the difference of two times of one clock. A step of the clock of this process has no
// effect: only the time since the measurement counts, by the monotonic clock. It is safe for
// concurrent use.
type clock struct {
	now func() time.Time

	mu sync.Mutex
	// server is the time of the server at the time measured.
	server, measured time.Time
	// asked is the time of the last request, which may have failed.
	asked time.Time
}

func newClock(now func() time.Time) *clock { return &clock{now: now} }

// age returns the time since the stream stored a message.
func (c *clock) age(stored time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(c.now().Sub(c.measured)).Sub(stored)
}

// sync measures the clock of a stream, and waits at most clockTimeout. It asks at most once in
// clockInterval, also after a failure. Without an answer, the last measurement stays, and sync
// returns the error. The info is nil without a measurement.
func (c *clock) sync(ctx context.Context, stream jetstream.Stream) (info *jetstream.StreamInfo, err error) {
	began := c.now()
	if !c.ask(began) {
		return nil, nil //nolint:nilnil // No measurement is due.
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	if info, err = stream.Info(ctx); err != nil {
		return nil, err
	}
	c.learn(began, info)
	return info, nil
}

// ask reports whether a request is due, and notes it.
func (c *clock) ask(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.asked) < clockInterval {
		return false
	}
	c.asked = now
	return true
}

// learn takes the time in an answer to a request that began at a time. The server read its clock in
// the middle of the request. A server before 2.10 sends no time: its clock must then agree with
// that of this process.
func (c *clock) learn(began time.Time, info *jetstream.StreamInfo) {
	middle := began.Add(c.now().Sub(began) / 2)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.measured, c.asked = info.TimeStamp, middle, began
	if info.TimeStamp.IsZero() {
		c.server = middle
	}
}
