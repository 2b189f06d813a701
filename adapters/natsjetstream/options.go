package natsjetstream

import (
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// ForwarderOptions are the optional settings of a [Forwarder]. The zero value is the documented
// default.
type ForwarderOptions struct {
	// Timeout bounds one call of Forward. The context of the caller may end it earlier. Default: 10
	// s.
	Timeout time.Duration
	// AnswerWait is the time that Forward waits for the answer of the operator after the stream has
	// stored the batch. Without an answer it returns nil. Default: 2 s. Negative: it does not wait,
	// and the operator cannot hand refused events back.
	AnswerWait time.Duration
	// RefusedRetryAfter is the wait after a refusal of the sender that asks for none, because
	// certificates may be rotating. Default: 30 s. Negative: none.
	RefusedRetryAfter time.Duration
}

func (o ForwarderOptions) withDefaults() ForwarderOptions {
	return option.WithDefaults(o, ForwarderOptions{
		Timeout: 10 * time.Second, AnswerWait: 2 * time.Second, RefusedRetryAfter: 30 * time.Second,
	})
}

// Options are the optional settings of a [Consumer]. The zero value is the documented default.
type Options struct {
	// Stream returns the configuration for the stream of a manager that has none yet. An existing
	// stream is not changed. Default: [StreamConfig].
	Stream func(core.Manager) jetstream.StreamConfig
	// Peer returns the facts that the NATS server has checked in the certificate of a runtime. It
	// is called concurrently. Default: ID and CommonName are the runtime of the subject, and there
	// are no SANs. SAN pinning needs the SAN by which the server knows the runtime.
	Peer func(core.RuntimeID) core.Peer

	// Fleet observes each batch that is verified, on the replica that handles it. Its resyncs are
	// delivered to the handlers while Start runs. Without a fleet, events that are given up are
	// only counted. Default: none.
	Fleet *fleet.Fleet
	// SharedFleet means that a listener for the same managers delivers the resyncs of Fleet.
	SharedFleet bool

	// MaxInFlight bounds the messages of each manager in the memory of this replica, and those of
	// all managers that the verifier and the handlers have at the same time. Default: 256.
	MaxInFlight int
	// RuntimeInFlight bounds the messages of one runtime that wait in memory. The bound is lower
	// while many runtimes have messages there, so that half of the memory is free for others. The
	// stream delivers further messages later. Default: 16.
	RuntimeInFlight int
	// RuntimeRate bounds the events of each runtime in a second on average, RuntimeBurst at once,
	// as in package listener. A message beyond them goes back to its forwarder, or the stream
	// delivers it later. Defaults: 200 and 1,000.
	RuntimeRate  float64
	RuntimeBurst int
	// HandleTimeout bounds the calls of verifier and handler for one message, with their context.
	// Default: 5 s.
	HandleTimeout time.Duration
	// GiveUpAfter is the age at which a message with refused events is terminated. Events that
	// fail for other reasons are never given up. Default: 10 min.
	GiveUpAfter time.Duration

	// Logger gets starts and ends, panics, and each loss of the connection with its return. It gets
	// failures to reach the stream when their reason changes and when they end. It also gets
	// terminated messages at warn, at most one a minute for each reason. Default: discard.
	Logger *slog.Logger
	// Hooks are called for metrics. Default: none.
	Hooks Hooks
}

// Hooks are optional callbacks of a [Consumer]. They are called concurrently and must not block.
type Hooks struct {
	// Concluded is called for each message with its fate: "enqueued", "handed_back" to the runtime,
	// "delayed" until the stream delivers it again, or "terminated". Reason is empty when every
	// event is enqueued. Both may be metric labels, provided that the reasons of verifiers and
	// handlers are.
	Concluded func(manager core.Manager, fate, reason string, took time.Duration)
	// Backlog is called each minute by the replica that takes the messages of a manager. It gets
	// their number in the stream, the part of the bytes of the stream that is in use (0 to 1), and
	// the age of the oldest message. All are 0 when the replica stops to take messages.
	Backlog func(manager core.Manager, messages uint64, filled float64, oldest time.Duration)
	// Redelivered is called for each message that the stream delivers again.
	Redelivered func(manager core.Manager)
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Stream: StreamConfig,
		Peer: func(runtime core.RuntimeID) core.Peer {
			return core.Peer{ID: runtime, CommonName: string(runtime)}
		},
		MaxInFlight:     256,
		RuntimeInFlight: 16,
		RuntimeRate:     200,
		HandleTimeout:   5 * time.Second,
		GiveUpAfter:     10 * time.Minute,
		Logger:          slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			Concluded:   func(core.Manager, string, string, time.Duration) {},
			Backlog:     func(core.Manager, uint64, float64, time.Duration) {},
			Redelivered: func(core.Manager) {},
		},
	})
}

func (o Options) ofIntake() intake.Options {
	return intake.Options{
		MaxInFlight: o.MaxInFlight, RuntimeRate: o.RuntimeRate, RuntimeBurst: o.RuntimeBurst,
		RuntimeInFlight: o.RuntimeInFlight, HandleTimeout: o.HandleTimeout, Fleet: o.Fleet, Logger: o.Logger,
	}
}

func (o Options) validate() error { return option.NotNegative("Options.GiveUpAfter", o.GiveUpAfter) }
