package fairness

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// flooderSettings are what the flooding process is told.
type flooderSettings struct {
	Identity    identity `json:"identity"`
	Addr        string   `json:"addr"`
	Connections int      `json:"connections"`
	// Streams is how many requests are in flight on each connection.
	Streams int `json:"streams"`
}

// flooded is what came of one round of the flood.
type flooded struct {
	Seconds float64 `json:"seconds"`
	Sent    int64   `json:"sent"`
	Taken   int64   `json:"taken"`
	// TooFast were answered 429 with Retry-After, Refused otherwise, and Failed not at all.
	TooFast int64 `json:"tooFast"`
	Refused int64 `json:"refused"`
	Failed  int64 `json:"failed"`
}

// runFlooder floods for as long as each order says, and reports, until its input ends.
func runFlooder(ctx context.Context, w *wire) {
	var settings flooderSettings

	w.must(w.Decode(&settings))
	w.must(syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19))

	var senders []*sender

	defer func() {
		for _, s := range senders {
			s.close()
		}
	}()

	for range settings.Connections {
		s, err := newSender(&settings.Identity, settings.Addr)
		w.must(err)

		senders = append(senders, s)

		// Connected one after the other: a client that has many requests and no connection yet opens one for each.
		_, _, err = s.do(ctx, http.MethodGet)
		w.must(err)
	}

	var round time.Duration
	for w.Decode(&round) == nil {
		w.must(w.Encode(flood(ctx, senders, settings.Streams, round)))
	}
}

func flood(ctx context.Context, senders []*sender, streams int, round time.Duration) flooded {
	var (
		group   sync.WaitGroup
		sum     counters
		started = time.Now()
	)

	for _, s := range senders {
		for range streams {
			group.Go(func() {
				for time.Since(started) < round {
					sum.add(s.send(ctx))
				}
			})
		}
	}

	group.Wait()

	return sum.flooded(time.Since(started))
}

type counters struct{ sent, taken, tooFast, refused, failed atomic.Int64 }

func (c *counters) add(status int, retryAfter string, err error) {
	c.sent.Add(1)

	switch {
	case err != nil:
		c.failed.Add(1)
	case status == http.StatusAccepted:
		c.taken.Add(1)
	case status == http.StatusTooManyRequests && retryAfter != "":
		c.tooFast.Add(1)
	default:
		c.refused.Add(1)
	}
}

func (c *counters) flooded(took time.Duration) flooded {
	return flooded{
		Seconds: took.Seconds(), Sent: c.sent.Load(), Taken: c.taken.Load(),
		TooFast: c.tooFast.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(),
	}
}
