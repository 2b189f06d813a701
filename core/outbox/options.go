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

// Defaults returns the options that the zero value means.
func Defaults() Options { return Options{}.withDefaults() }

// Options are the optional settings of an [Outbox]. The zero value is the documented default.
type Options struct {
	// Settle is the time that an event waits before it is sent, as a change source may see a write
	// before its commit. Default: 100 ms. Negative: none.
	Settle time.Duration
	// SettleChecked is the time that an event with a UID waits instead while its receiver checks
	// after Settle or later whether a reconcile has read the write. Default: 10 ms, in which an API
	// server commits most writes. Negative: none.
	SettleChecked time.Duration
	// RecheckAfter returns the time after which the receiver of a manager makes that check, as its
	// last answer says, 0 if it makes none. It is called after each call of the forwarder, and must
	// not block. If an event is sent earlier than Settle, and the answer names no check, the event
	// is sent again after Settle. Default: 0.
	RecheckAfter func(core.Manager) time.Duration
	// Resend has the delays after which a delivered event is sent once more, because another
	// webhook may delay the commit of a write. They rise, and count from the acceptance of the
	// event. A newer event with the same key replaces the resends. A delay that has passed when the
	// event is sent is skipped. Default: 3 s, which covers most slow webhooks, and 35 s, which is
	// longer than any webhook may delay a commit. Empty and not nil: never.
	//
	// A key that waits for its resend counts for MaxKeys, and gives way to a new key: a resync
	// stands in. Resends that wait when Start ends are not sent. With heartbeats, the last one
	// names their number, and the control plane makes up for them by a resync.
	Resend []time.Duration
	// ResendResync is the delay after which a delivered resync is sent once more. It must be longer
	// than the timeout of any webhook. It must not be shorter than the last of Resend, because a
	// resync stands in for events. Default: 35 s. Negative: never.
	ResendResync time.Duration
	// ResendEvery is the step at which resends are sent, so that all that became due since the last
	// step travel together. A call before that step carries them, too, if its batch has room. So a
	// resend is at most so much later than Resend says, and never earlier. Default: 1 s. Negative:
	// each resend is sent when it is due.
	ResendEvery time.Duration
	// Gather is the time after the start of a call for which events that become due wait, so that
	// they travel together. An event is sent immediately if there was no call in that time, if a
	// batch is full, or if waiting has gathered nothing lately. Default: 50 ms, and twice that
	// after a wait that has gathered four events. Negative: none. With
	// a MaxBatch of 1, events never wait.
	Gather time.Duration
	// GiveUpAfter is the time for which the outbox retries an event that the manager refuses for
	// itself. Then it drops the event, and a resync replaces it. A resync is retried until it is
	// delivered. One for an owner ends with a permanent error, too. Default: 5 min.
	GiveUpAfter time.Duration
	// MaxKeys bounds the distinct events over all managers. The manager with the most keys gives
	// way to one with fewer. Default: 10,000.
	MaxKeys int
	// MaxBytes bounds the memory of these events, in bytes, over all managers. An event counts for
	// about 600 bytes and its texts, and for 300 more if a newer one waits beside it. So objects
	// with names of 1 kB reach MaxBytes before MaxKeys. The manager with the most bytes gives way.
	// Default: 7 MiB, which has room for 10,000 events of objects with usual names.
	MaxBytes int
	// MaxManagers bounds the managers with events. Managers that the control plane never knew give
	// way to new ones. Default: 100, or the number of Managers if that is higher.
	MaxManagers int
	// MaxBatch bounds the events of one call of the forwarder. Default: 1.
	MaxBatch int
	// InFlight bounds the concurrent calls of the forwarder for one manager. Default: 8; 1 with an
	// Epoch, so that numbers arrive in their order.
	InFlight int
	// ForwardTimeout bounds one call of the forwarder. Default: 10 s.
	ForwardTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait after failures in a row. It doubles from one to the
	// other, and half of it is random. A longer wait that the receiver asks for is kept. After
	// [core.ErrNotReady] the longest wait is shorter: one eighth of the time since the first
	// failure, at least 2 s and at most MaxBackoff. Defaults: 200 ms, 20 s.
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// DrainTimeout bounds the time for which Start delivers after its context has ended. Default:
	// 10 s. Negative: none.
	DrainTimeout time.Duration
	// Managers are known from the beginning. Other managers are known from their first event on.
	Managers []core.Manager
	// ResyncFirst makes the first event for a manager a resync, as changes before this process are
	// unknown.
	ResyncFirst bool
	// ResyncOwners means that a resync is for an owner, as contract v1 identifies a runtime by its
	// owner. There is one for each owner that an event has named, for at most 100 owners of a
	// manager. An owner of which the receiver has taken an event displaces one that is only named.
	// Default: one for the manager.
	ResyncOwners bool

	// Epoch identifies this life of this process. With an epoch, events are numbered and heartbeats
	// sent.
	Epoch string
	// HeartbeatInterval is the longest time between two heartbeats to a manager. Up to a tenth is
	// taken off at random. A change of canary, configuration or key material, a first review and a
	// first loss are sent within 2 s, at most every 5 s. So is the delivery of events that were
	// older than 30 s in the last heartbeat. Default: 30 s. Negative: none.
	HeartbeatInterval time.Duration
	// Disconnects counts the connections of the forwarder that have ended. The fleet of a receiver
	// that sees connections takes the agent for dead without another one. So a heartbeat follows
	// within 20 s, or 30 s after the last one if that is later. It is called every second.
	// Default: none.
	Disconnects func() int64
	// Heartbeat returns the fields of a heartbeat that the outbox does not know: instance, version,
	// key material, canary, reviews and configuration. Forwarding to that manager waits for it.
	// It is called about once a second from the first heartbeat on, unless a call of the forwarder
	// is under way.
	Heartbeat func(core.Manager) core.Heartbeat

	// Random returns numbers in [0, 1), concurrently. Default: [rand.Float64].
	Random func() float64
	// Hooks are called for metrics.
	Hooks Hooks
	// Logger gets a line when a manager cannot be reached, when the reason changes, every 5 min
	// while it lasts, and when it ends. One goroutine of Start writes them. Lines that a slow
	// logger does not take are lost. Nil discards.
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

// withoutNone leaves out the options of which a negative one means none.
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

// Hooks are optional callbacks of an [Outbox]. They are called concurrently and without its lock,
// and must return promptly: forwarding waits for them.
type Hooks struct {
	// Attempted is called after each call of the forwarder.
	Attempted func(hook.Attempt)
}
