package natsjetstream

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// remote is a stream on a server with a clock of its own. It counts the requests.
type remote struct {
	jetstream.Stream

	ahead  time.Duration
	silent bool
	asked  int
}

func (r *remote) Info(ctx context.Context, _ ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	r.asked++
	if r.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(clockTimeout / 4)
	stamp := r.now() // In the middle of the request.
	time.Sleep(clockTimeout / 4)
	return &jetstream.StreamInfo{TimeStamp: stamp}, nil
}

func (r *remote) now() time.Time { return time.Now().Round(0).Add(r.ahead) }

// A server that does not tell its time delays one round in a minute, and not each.
func TestFailedMeasurementIsRepeatedAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stream, clock := &remote{ahead: time.Hour}, newClock(time.Now)
		var log strings.Builder
		c := &Consumer{opts: Options{}.withDefaults(), paced: slog.New(slog.NewTextHandler(&log, nil))}
		for range 2 { // The second one does not measure.
			c.measure(t.Context(), "m", clock, stream)
		}
		if log.Len() > 0 {
			t.Errorf("log of a stream that returns its time: %s", &log)
		}
		stream.silent = true
		time.Sleep(clockInterval - clockTimeout/2) // Since the first one began.

		began := time.Now()
		for range 5 {
			c.measure(t.Context(), "m", clock, stream)
		}
		if waited := time.Since(began); waited != clockTimeout || stream.asked != 2 {
			t.Errorf("five rounds wait %v for %d measurements, want %v for 1", waited, stream.asked-1, clockTimeout)
		}
		if n := strings.Count(log.String(), "the age of messages drifts"); n != 1 {
			t.Errorf("%d lines about a failed measurement, want 1: %s", n, &log)
		}
		if age := clock.age(stream.now()); age != 0 {
			t.Errorf("after a failed measurement, a new message is %v old, want 0", age)
		}

		time.Sleep(clockInterval)
		stream.silent, stream.ahead = false, -time.Hour
		_, _ = clock.sync(t.Context(), stream)
		if age := clock.age(stream.now()); age != 0 {
			t.Errorf("after the next measurement, a new message is %v old, want 0", age)
		}
	})
}
