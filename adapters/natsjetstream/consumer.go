// Package natsjetstream carries batches through NATS JetStream, as an alternative to HTTP between
// runtimes and an operator.
//
//	runtime        Forwarder  publishes to watch.<manager>.<runtime>
//	NATS server    stream     watch-<manager> stores the batch until it is handled
//	control plane  Consumer   verifies the batch, enqueues its events and acknowledges it
//
// The payload follows contract v3. The NATS server checks the certificate of a runtime and lets the
// runtime publish only under its own name. The operator trusts the subject; see docs/security.md.
//
// # Acknowledgement
//
// [Forwarder].Forward returns nil when the operator has enqueued every event. It also returns nil
// if the stream has stored the batch but the operator has not answered in time. From then on the
// stream owns the batch and delivers it until the operator accepts it.
//
// A [Consumer] acknowledges a message to the stream when all its events are enqueued. It offers
// refused events to the forwarder that waits for the answer. If the forwarder confirms, its outbox
// owns the events again. Otherwise the stream keeps the message and delivers it again later. A
// message with events that are refused for longer than [Options].GiveUpAfter is terminated and
// counted. The fleet then misses the numbers of these events and requests a resync of that runtime.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package natsjetstream

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Options are the optional settings of a [Consumer]. The zero value is the documented default.
type Options struct {
	// Stream returns the configuration for the stream of a manager that has no stream yet. An
	// existing stream is not changed. Default: [StreamConfig].
	Stream func(core.Manager) jetstream.StreamConfig
	// Peer returns the parts of a runtime's certificate that the NATS server has checked. It is
	// called concurrently. Default: ID and CommonName are the runtime of the subject, and there are
	// no SANs. SAN pinning needs the SAN by which the server identifies the runtime.
	Peer func(core.RuntimeID) core.Peer

	// Fleet observes each verified batch, on the replica that handles the batch. While Start runs,
	// the consumer delivers the resyncs of the fleet to the handlers. Without a fleet, events that
	// are given up are only counted. Default: none.
	Fleet *fleet.Fleet
	// SharedFleet means that a listener for the same managers delivers the resyncs of Fleet.
	SharedFleet bool

	// Revocations lists the runtimes that are refused, as in package listener. An entry matches the
	// runtime of the subject, or a name or fingerprint that Peer returns. The messages of these
	// runtimes are terminated. The NATS server owns the connection of a revoked user, so remove the
	// user there as well. Default: none.
	Revocations intake.Revocations

	// MaxInFlight bounds the messages of each manager in the memory of this replica. It also bounds
	// the messages of all managers that the verifier and the handlers process at the same time.
	// Default: 256.
	MaxInFlight int
	// RuntimeInFlight bounds the messages of one runtime that wait in memory. The bound is lower
	// while many runtimes have messages in memory, so that half of the memory is free for other
	// runtimes. The stream delivers further messages later. Default: 16.
	RuntimeInFlight int
	// RuntimeRate bounds the average number of events per second from each runtime, and
	// RuntimeBurst the number in one burst, as in package listener. A message beyond these bounds
	// goes back to its forwarder, or the stream delivers it later. Defaults: 200 and 1,000.
	RuntimeRate  float64
	RuntimeBurst int
	// HandleTimeout bounds the calls to the verifier and the handler for one message, through their
	// context. Default: 5 s.
	HandleTimeout time.Duration
	// GiveUpAfter is the age at which a message with refused events is terminated. Events that
	// fail for other reasons are never given up. Default: 10 min.
	GiveUpAfter time.Duration

	// Logger gets starts, stops, panics, and each loss and each return of the connection. It gets
	// failures to reach the stream when their reason changes and when they end. It also gets
	// terminated messages at warn, at most once a minute for each reason. Default: discard.
	Logger *slog.Logger
	// Hooks are called for metrics. Default: none.
	Hooks Hooks
}

// Hooks are optional callbacks of a [Consumer]. They are called concurrently and must not block.
type Hooks struct {
	// Managers are the managers that the hooks expect, such as managers with metrics from the
	// start. The consumer logs each of these managers that it does not serve. Default: none.
	Managers []core.Manager
	// Concluded is called at the end of each delivery of a message.
	Concluded func(hook.Conclusion)
	// Backlog is called every minute by the replica that takes the messages of a manager, and when
	// that replica stops taking messages.
	Backlog func(hook.Backlog)
	// Unavailable is called when this replica fails to take the messages of a manager in two
	// attempts, a second apart, and when messages can be taken again.
	Unavailable func(hook.Unavailability)
	// Redelivered is called for each message that the stream delivers again.
	Redelivered func(hook.Redelivery)
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
			Concluded:   func(hook.Conclusion) {},
			Backlog:     func(hook.Backlog) {},
			Redelivered: func(hook.Redelivery) {},
			Unavailable: func(hook.Unavailability) {},
		},
	})
}

func (o Options) ofIntake() intake.Options {
	return intake.Options{
		MaxInFlight: o.MaxInFlight, RuntimeRate: o.RuntimeRate, RuntimeBurst: o.RuntimeBurst,
		RuntimeInFlight: o.RuntimeInFlight, HandleTimeout: o.HandleTimeout, Fleet: o.Fleet, Revocations: o.Revocations,
		Logger: o.Logger, Measured: o.Hooks.Managers,
	}
}

// Consumer takes the batches of one or more managers from their streams and passes the events to
// the handlers. Create it with [NewConsumer] and run Start. All replicas of an operator share the
// work: each message goes to one of them.
//
// A handler may be a [core.Readier]. A replica takes messages only while Ready of that handler
// returns nil. With leader election, the leader therefore takes all messages. Without leader
// election, each replica takes a part of them, and [Options].Fleet must be nil.
type Consumer struct {
	conn     *nats.Conn
	stream   jetstream.JetStream
	intake   *intake.Intake
	opts     Options
	started  atomic.Bool
	serving  atomic.Bool
	paced    *slog.Logger // for lines that a runtime can cause without end
	returns  returns
	partial  partial
	problems problems
	managers []core.Manager
	now      func() time.Time
	ackWait  time.Duration
	// receive is the part that a test replaces.
	receive func(ctx context.Context, r *intake.Request) result
}

// result is the result of receiving a batch: nil, [core.EventErrors] or the failure of all of it,
// and the side that a failure of all of it belongs to.
type result struct {
	err   error
	fault intake.Fault
}

// resultOf returns the result for an error of the intake.
func resultOf(err error) result {
	r := result{err: err}
	if whole, ok := errors.AsType[*intake.Failure](err); ok {
		r.fault = whole.Fault
	}
	return r
}
