package natsjetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	// duplicates is the time for which a stream remembers the IDs of messages.
	duplicates = 2 * time.Minute
	// maxMessage is the largest batch of contract v3 with its headers, in bytes.
	maxMessage        = 257 << 10
	defaultMaxPending = 256
	defaultMaxBytes   = 1 << 30
)

// subjects are those of all runtimes.
func subjects(manager core.Manager) string { return subjectRoot + "." + string(manager) + ".*" }

// StreamConfig returns the stream of a manager: a work queue on disk with at most 1 GiB, and at
// most 256 batches from one runtime. A full stream refuses new messages and removes no message, so
// that the outbox of the runtime keeps its events. The stream cannot be purged, because a server
// without strict JSON accepts an acknowledgement that a runtime sends to the API as a purge
// request. Replicas is 1; set it to 3 in a cluster.
func StreamConfig(manager core.Manager) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 streamName(manager),
		Description:          "events of runtimes for " + string(manager),
		Subjects:             []string{subjects(manager)},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    defaultMaxPending,
		MaxBytes:             defaultMaxBytes,
		MaxMsgSize:           maxMessage,
		Duplicates:           duplicates,
		DenyPurge:            true,
		DenyDelete:           true,
		Replicas:             1,
	}
}

var (
	errLoses = errors.New("natsjetstream: the stream may lose messages, want the limits and denials of StreamConfig")
	errLower = errors.New("a server would remove messages: want no lower MaxMsgsPerSubject, " +
		"and no MaxBytes below the stored bytes")
)

// EnsureStream creates a stream, or changes the limits and the replicas of the existing one. The
// messages of the stream stay: EnsureStream refuses a config that may lose messages, a lower
// MaxMsgsPerSubject, and a MaxBytes below the number of stored bytes. Call it before
// [Consumer].Start, for example in each release.
func EnsureStream(ctx context.Context, conn *nats.Conn, config jetstream.StreamConfig) error {
	if !losesNothing(config) {
		return fmt.Errorf("%w: %s", errLoses, config.Name)
	}

	streams, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("natsjetstream: stream %s: %w", config.Name, err)
	}
	if err := ensure(ctx, streams, config); err != nil {
		return fmt.Errorf("natsjetstream: stream %s: %w", config.Name, err)
	}
	return nil
}

func ensure(ctx context.Context, streams jetstream.JetStream, config jetstream.StreamConfig) error {
	stream, err := streams.Stream(ctx, config.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = streams.CreateStream(ctx, config)
	case err != nil:
	case removes(config, stream.CachedInfo()):
		err = errLower
	default:
		_, err = streams.UpdateStream(ctx, config)
	}
	return err
}

// removes takes limits of 0 and less as none.
func removes(config jetstream.StreamConfig, from *jetstream.StreamInfo) bool {
	before := from.Config.MaxMsgsPerSubject
	hadMore := before <= 0 || config.MaxMsgsPerSubject < before
	if config.MaxMsgsPerSubject > 0 && hadMore {
		return true
	}

	return config.MaxBytes > 0 && uint64(config.MaxBytes) < from.State.Bytes
}

// losesNothing reports whether a stream keeps each message until it is acknowledged, against any
// request of a runtime.
func losesNothing(config jetstream.StreamConfig) bool {
	isQueue := config.Retention == jetstream.WorkQueuePolicy && config.Discard == jetstream.DiscardNew
	cannotDelete := config.DenyPurge && config.DenyDelete
	return isQueue && cannotDelete && config.MaxAge == 0
}

// checkSubjects returns errSubject for a stream without the subject of a manager. A stream that is
// fed by another one may have no subjects.
func checkSubjects(config *jetstream.StreamConfig, manager core.Manager) error {
	if config.Mirror != nil || len(config.Sources) > 0 {
		return nil
	}

	want := subjects(manager)
	for _, subject := range config.Subjects {
		if covers(subject, want) {
			return nil
		}
	}
	return fmt.Errorf("%w: it has %.200q, want %s", errSubject, strings.Join(config.Subjects, " "), want)
}

// covers reports whether a subject with wildcards includes another one.
func covers(subject, other string) bool {
	wide := strings.Split(subject, ".")
	narrow := strings.Split(other, ".")
	for i, token := range wide {
		switch {
		case token == ">":
			return i < len(narrow)
		case i == len(narrow):
			return false
		case token != "*" && token != narrow[i]:
			return false
		}
	}
	return len(wide) == len(narrow)
}

// consumerConfig has no bound on messages that wait for a later delivery: refused messages of some
// runtimes would otherwise hold up all others. The stream bounds them.
func consumerConfig(manager core.Manager, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       string(manager),
		FilterSubject: subjects(manager),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: -1,
	}
}

const (
	// clockInterval is the time between two measurements of the server's clock.
	clockInterval = time.Minute
	clockTimeout  = time.Second
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
}

func newClock(now func() time.Time) *clock { return &clock{now: now} }

// ageOf returns the time since the leader stored a message.
func (c *clock) ageOf(stored time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(c.now().Sub(c.measured)).Sub(stored)
}

// learnTime takes the time in an answer to a request that began at a time. The server read its
// clock in the middle of the request. A server before 2.10 sends no time: its clock must then agree
// with the clock of this process.
func (c *clock) learnTime(began time.Time, info *jetstream.StreamInfo) {
	middle := began.Add(c.now().Sub(began) / 2)
	c.mu.Lock()
	defer c.mu.Unlock()

	c.server = info.TimeStamp
	c.measured = middle
	if info.TimeStamp.IsZero() {
		c.server = middle
	}
}
