package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Defaults returns the options with every default filled in.
func Defaults() Options { return Options{}.withDefaults() }

// Options are the optional settings of an [Outbox]. The zero value is the documented default.
type Options struct {
	// Settle is how long an event waits before it is sent, because a change source may see a write
	// before its commit. Default: 100 ms. Negative: none.
	Settle time.Duration
	// SettleChecked is how long an event with a UID waits instead of Settle if its receiver checks,
	// after Settle or later, whether a reconcile has read the write. Default: 10 ms, within which
	// an API server commits most writes. Negative: none.
	SettleChecked time.Duration
	// RecheckAfter returns the delay after which the receiver of a manager makes that check,
	// according to its last answer, or 0 if it makes no check. It is called after each call of the
	// forwarder and must not block. If an event is sent earlier than Settle and the answer
	// announces no check, the event is sent again after Settle. Default: 0.
	RecheckAfter func(core.Manager) time.Duration
	// Resend contains the delays after which a delivered event is sent once more, because another
	// webhook may delay the commit of a write. The delays must increase and count from the
	// acceptance of the event. A newer event with the same key replaces the resends. A delay that
	// has passed when the event is sent is skipped. Default: 3 s, which covers most slow webhooks,
	// and 35 s, which is longer than any webhook may delay a commit. Empty but not nil: never.
	//
	// A key that waits for its resend counts towards MaxKeys. A new key may evict it, and a resync
	// then replaces the resend. Resends that wait when Start ends are not sent. With heartbeats,
	// the last heartbeat says how many they are, and the control plane replaces them with a resync.
	Resend []time.Duration
	// ResendResync is the delay after which a delivered resync is sent once more. It must be longer
	// than the timeout of any webhook. It must not be shorter than the last delay in Resend,
	// because a resync replaces events. Default: 35 s. Negative: never.
	ResendResync time.Duration
	// ResendEvery is the interval at which resends are sent, so that all resends that became due
	// since the last interval are sent together. An earlier call also carries due resends if its
	// batch has room. Therefore a resend is at most ResendEvery later than Resend says, and never
	// earlier. Default: 1 s. Negative: each resend is sent when it is due.
	ResendEvery time.Duration
	// Events that become due less than Gather after the start of a call wait until Gather is over,
	// so that they are sent together. An event is sent immediately if there was no call in that
	// time, if a batch is full, or if recent waits have gathered nothing. Default: 50 ms, and twice
	// that after a wait that has gathered four events. Negative: none. With a MaxBatch of 1, events
	// never wait.
	Gather time.Duration
	// GiveUpAfter is how long the outbox retries an event that the manager refuses individually.
	// Then the outbox drops the event, and a resync replaces it. A resync is retried until it is
	// delivered. A resync for an owner is also given up after a permanent error. Default: 5 min.
	GiveUpAfter time.Duration
	// MaxKeys bounds the distinct events of all managers. When the bound is reached, events of the
	// manager with the most keys are evicted for a manager with fewer keys. Default: 10,000.
	MaxKeys int
	// MaxBytes bounds the memory of the events of all managers, in bytes. An event counts as about
	// 600 bytes plus its texts, and 300 bytes more while a newer event waits behind it. Therefore
	// objects with names of 1 kB reach MaxBytes before MaxKeys. Events of the manager with the most
	// bytes are evicted. Default: 7 MiB, which has room for 10,000 events of objects with usual
	// names.
	MaxBytes int
	// MaxManagers bounds the managers with events. Managers that the control plane never
	// acknowledged are evicted for new managers. Default: 100, or the number of Managers if that is
	// higher.
	MaxManagers int
	// MaxBatch bounds the events in one call of the forwarder. Default: 1.
	MaxBatch int
	// InFlight bounds the concurrent calls of the forwarder for one manager. Default: 8, or 1 with
	// an Epoch, so that numbers arrive in order.
	InFlight int
	// ForwardTimeout bounds one call of the forwarder. Default: 10 s.
	ForwardTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait after consecutive failures. The wait doubles from
	// MinBackoff to MaxBackoff, and half of it is random. If the receiver requests a longer wait,
	// that wait is used. After [core.ErrNotReady] the longest wait is shorter: one eighth of the
	// time since the first failure, at least 2 s and at most MaxBackoff. Defaults: 200 ms, 20 s.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// DrainTimeout bounds how long Start continues to deliver after its context has ended. Default:
	// 10 s. Negative: none.
	DrainTimeout time.Duration
	// Managers are known from the beginning. Other managers become known with their first event.
	Managers []core.Manager
	// ResyncFirst makes the first event for a manager a resync, because changes before this process
	// are unknown.
	ResyncFirst bool
	// ResyncOwners means that a resync is for an owner, because contract v1 identifies a runtime by
	// its owner. There is one resync for each owner that an event has named, for at most 100 owners
	// of a manager. An owner with an accepted event displaces an owner without an accepted event.
	// Default: one resync for the manager.
	ResyncOwners bool

	// Epoch identifies this run of this process. With an epoch, events are numbered and heartbeats
	// are sent.
	Epoch string
	// HeartbeatInterval is the longest time between two heartbeats to a manager. It is shortened at
	// random by up to a tenth. A change of canary, configuration or key material, a first review
	// and a first dropped event are reported within 2 s, at most every 5 s. The same applies to the
	// delivery of events that were older than 30 s in the last heartbeat. Default: 30 s. Negative:
	// none.
	HeartbeatInterval time.Duration
	// Disconnects counts the connections of the forwarder that have ended. If a receiver sees
	// connections, its fleet assumes that an agent without a connection is dead. Therefore a
	// heartbeat follows within 20 s, or 30 s after the last heartbeat if that is later. Disconnects
	// is called every second. Default: none.
	Disconnects func() int64
	// Heartbeat returns the fields of a heartbeat that the outbox does not know: instance, version,
	// key material, canary, reviews and configuration. Forwarding to that manager waits for the
	// result. Heartbeat is called about once a second from the first heartbeat on, unless a call of
	// the forwarder is under way.
	Heartbeat func(core.Manager) core.Heartbeat

	// Random returns a random number in [0, 1). It is called concurrently. Default: [rand.Float64].
	Random func() float64
	// Hooks are called for metrics.
	Hooks Hooks
	// Logger gets a line when a manager becomes unreachable, when the reason changes, every 5 min
	// while the problem lasts, and when it ends. One goroutine of Start writes the lines. Lines are
	// lost if the logger is too slow. Nil discards.
	Logger *slog.Logger
}

const defaultHeartbeatInterval = 30 * time.Second

func (o Options) withDefaults() Options {
	inFlight := 8
	if o.Epoch != "" {
		inFlight = 1
	}

	// An API server commits a write at most 30 s after the review, the longest timeout of webhooks.
	const resendResync = 35 * time.Second
	o.MinBackoff = cmp.Or(o.MinBackoff, 200*time.Millisecond)
	return option.WithDefaults(o, Options{
		Settle:            100 * time.Millisecond,
		SettleChecked:     10 * time.Millisecond,
		RecheckAfter:      func(core.Manager) time.Duration { return 0 },
		Resend:            []time.Duration{3 * time.Second, resendResync},
		ResendResync:      resendResync,
		ResendEvery:       time.Second,
		Gather:            50 * time.Millisecond,
		GiveUpAfter:       5 * time.Minute,
		MaxKeys:           10_000,
		MaxBytes:          7 << 20,
		MaxManagers:       max(defaults.MaxManagers, len(o.Managers)),
		MaxBatch:          1,
		InFlight:          inFlight,
		ForwardTimeout:    10 * time.Second,
		MaxBackoff:        max(o.MinBackoff, 20*time.Second),
		DrainTimeout:      10 * time.Second,
		HeartbeatInterval: defaultHeartbeatInterval,
		Disconnects:       func() int64 { return 0 },
		Heartbeat:         func(core.Manager) (none core.Heartbeat) { return none },
		Random:            rand.Float64,
		Hooks:             Hooks{Attempted: func(hook.Attempt) {}},
		Logger:            slog.New(slog.DiscardHandler),
	})
}

func (o Options) validate() error {
	isFirstLater := len(o.Resend) == 0 || o.Resend[0] > max(o.Settle, 0)
	isRising := slices.IsSorted(o.Resend) && isFirstLater
	isOneCall := o.Epoch == "" || o.InFlight <= 1
	isEnough := o.MaxManagers >= len(o.Managers)

	const wrong = "option %s is %v, want %s"
	err := errors.Join(option.NoneNegative(o.withoutNone()),
		option.Unless(isRising, wrong, "Resend", o.Resend, "rising times above Settle"),
		option.Unless(isEnough, wrong, "MaxManagers", o.MaxManagers, "at least the number of Managers"),
		option.Unless(isOneCall, wrong, "InFlight", o.InFlight, "1 with an Epoch"),
		option.Unless(o.MaxBackoff >= o.MinBackoff, wrong, "MaxBackoff", o.MaxBackoff, "at least MinBackoff"))
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// withoutNone returns the options without those in which a negative value has a meaning.
func (o Options) withoutNone() Options {
	o.Settle = 0
	o.SettleChecked = 0
	o.ResendResync = 0
	o.ResendEvery = 0
	o.Gather = 0
	o.DrainTimeout = 0
	o.HeartbeatInterval = max(o.HeartbeatInterval, 0)
	return o
}

// Hooks are optional callbacks of an [Outbox]. They are called concurrently and without the lock of
// the outbox. They must return promptly, because forwarding waits for them.
type Hooks struct {
	// Attempted is called after each call of the forwarder.
	Attempted func(hook.Attempt)
}
