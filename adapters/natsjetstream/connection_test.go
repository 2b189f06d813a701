package natsjetstream_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
)

func newLog() (*slog.Logger, *locked) {
	log := &locked{to: &strings.Builder{}}
	return slog.New(slog.NewTextHandler(log, nil)), log
}

// A killed server fails no request for messages: the client waits for the next one. So the consumer
// reports the connection itself, each time.
func TestLostConnectionIsLogged(t *testing.T) {
	t.Parallel()
	logger, log := newLog()
	s := newScene(t, allowAll(), natsjetstream.Options{Logger: logger})
	for n := range 2 {
		s.kill()
		eventually(t, "the loss is logged", func() bool { return log.count("connection to the NATS server lost") == n+1 })
		if got := log.count("connected to the NATS server again"); got != n {
			t.Errorf("%d returns are logged before the server runs, want %d", got, n)
		}
		s.start()
		eventually(t, "the return is logged", func() bool { return log.count("connected to the NATS server again") == n+1 })
	}
}

// The same fault is logged each time that it begins, and so is its end.
func TestStreamThatFailsAgainIsLoggedAgain(t *testing.T) {
	t.Parallel()
	logger, log := newLog()
	s := newScene(t, allowAll(), natsjetstream.Options{Logger: logger})
	admin := must(jetstream.New(s.connect()))
	for range 2 {
		// One failure may have several reasons, and each has its end.
		failures, ends := log.count("no messages from the stream"), log.count("messages from the stream again")
		check(t, admin.DeleteStream(t.Context(), "watch-"+string(manager)))
		eventually(t, "the failure is logged", func() bool { return log.count("no messages from the stream") > failures })
		eventually(t, "its end is logged", func() bool { return log.count("messages from the stream again") > ends })
	}
}
