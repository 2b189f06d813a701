package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The defaults of [Options].
const (
	DefaultSettle         = 100 * time.Millisecond
	DefaultMaxKeys        = 10_000
	DefaultMaxManagers    = 100
	DefaultMaxBatch       = 1
	DefaultInFlight       = 8
	DefaultForwardTimeout = 10 * time.Second
	DefaultMinBackoff     = 200 * time.Millisecond
	DefaultMaxBackoff     = 20 * time.Second
	DefaultDrainTimeout   = 10 * time.Second

	DefaultHeartbeatInterval = 30 * time.Second
	DefaultResyncAgain       = 10 * time.Second
)

// Options are the optional settings of an [Outbox]. The zero value is the documented default.
type Options struct {
	// Settle is how long an event waits before it is sent, because a source may see a write before it is committed.
	// Default [DefaultSettle]; negative means not at all.
	Settle time.Duration
	// LookAgain is when an event that was delivered is sent once more, counted from its acceptance, unless a newer one with an equal key
	// came meanwhile, which has its own second look, or it was sent later than that anyway: a write may be committed after the first look at
	// it, when a slow webhook or a stalled etcd takes longer than Settle. So every look that wants to be the last one comes at least that
	// long after the write was seen. At most twice the events are sent. Second looks count for MaxKeys and make room first, to a resync that
	// comes as late; those that wait when Start ends are not sent: with heartbeats, the manager is not told that this process leaves in good
	// order, so that it asks for a resync, and else the resync of the next start is what there is. Default: none. It must be
	// longer than Settle.
	LookAgain time.Duration
	// MaxKeys bounds the distinct events that are kept, over all managers. Default [DefaultMaxKeys].
	MaxKeys int
	// MaxManagers bounds the managers that events are kept for. Default [DefaultMaxManagers].
	MaxManagers int
	// MaxBatch is how many events one call of the forwarder gets at most. Default [DefaultMaxBatch].
	MaxBatch int
	// InFlight is how many calls of the forwarder may run at once for one manager. Default [DefaultInFlight]; with an Epoch
	// it is 1, so that numbers arrive in their order.
	InFlight int
	// ForwardTimeout bounds one call of the forwarder. Default [DefaultForwardTimeout].
	ForwardTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait after failures in a row: it doubles from one to the other, and half
	// of it is random. A longer wait that the receiver asks for is kept to. Defaults [DefaultMinBackoff] and
	// [DefaultMaxBackoff].
	MinBackoff time.Duration
	MaxBackoff time.Duration
	// DrainTimeout is how long Start goes on delivering after its context has ended. Default [DefaultDrainTimeout];
	// negative means not at all.
	DrainTimeout time.Duration
	// Managers are known from Start on, others from their first event on.
	Managers []core.Manager
	// ResyncFirst lets the first event for a manager be a resync: nobody knows what happened before this process. The resync gets the
	// owner of the event that made the manager known, and none for Managers.
	ResyncFirst bool
	// ResyncAgain is when a resync for what may have gone by unseen, by ResyncFirst or [Outbox.Resync], is followed by a second one, unless it
	// was sent later than that: a write that the source did not see may be committed after the first look at it, as an API server first waits
	// for a webhook that is gone. So it should be longer than the webhook's timeout. The longer one of it and LookAgain counts. Default [DefaultResyncAgain]; negative means no second one.
	ResyncAgain time.Duration
	// ResyncOwners means that a resync is for an owner, as contract v1 knows a runtime by its owner only. Then there is one for each owner that
	// events for the manager have named, up to [MaxOwners], and none before. Default: one for the manager.
	ResyncOwners bool

	// Epoch names this life of this process. With one, what is sent is numbered, and heartbeats are sent. Default: neither.
	Epoch string
	// HeartbeatInterval is the longest time between two heartbeats to a manager, of which up to a tenth is taken off at random.
	// Default [DefaultHeartbeatInterval]; negative means none.
	HeartbeatInterval time.Duration
	// Heartbeat returns what the outbox can not know of a heartbeat: instance, version, key material, canary and
	// configuration. It is called with the outbox's lock held: it must return at once, and must not call the outbox.
	Heartbeat func(core.Manager) core.Heartbeat

	// Random returns numbers in [0, 1), concurrently. Default [rand.Float64].
	Random func() float64
	// Hooks are called as events meet their fates.
	Hooks Hooks
	// Logger gets a line when a manager can not be reached, when it can again, and per event at debug level. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Settle = cmp.Or(o.Settle, DefaultSettle)
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.MaxManagers = cmp.Or(o.MaxManagers, DefaultMaxManagers)
	o.MaxBatch = cmp.Or(o.MaxBatch, DefaultMaxBatch)
	o.InFlight = cmp.Or(o.InFlight, defaultInFlight(o.Epoch))
	o.ForwardTimeout = cmp.Or(o.ForwardTimeout, DefaultForwardTimeout)
	o.MinBackoff = cmp.Or(o.MinBackoff, DefaultMinBackoff)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, max(o.MinBackoff, DefaultMaxBackoff))
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)

	o.ResyncAgain = cmp.Or(o.ResyncAgain, DefaultResyncAgain)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, DefaultHeartbeatInterval)

	if o.Random == nil {
		o.Random = rand.Float64
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func defaultInFlight(epoch string) int {
	if epoch != "" {
		return 1
	}

	return DefaultInFlight
}

func (o Options) validate() error {
	for _, setting := range []struct {
		name string
		ok   bool
		have any
		want string
	}{
		{"LookAgain", o.LookAgain == 0 || o.LookAgain > max(o.Settle, 0), o.LookAgain, "0 or more than Settle"},
		{"MaxKeys", o.MaxKeys > 0, o.MaxKeys, "more than 0"},
		{"MaxManagers", o.MaxManagers > 0, o.MaxManagers, "more than 0"},
		{"MaxBatch", o.MaxBatch > 0, o.MaxBatch, "more than 0"},
		{"InFlight", o.InFlight > 0, o.InFlight, "more than 0"},
		{"InFlight", o.Epoch == "" || o.InFlight == 1, o.InFlight, "1 with an Epoch"},
		{"ForwardTimeout", o.ForwardTimeout > 0, o.ForwardTimeout, "more than 0"},
		{"MinBackoff", o.MinBackoff > 0, o.MinBackoff, "more than 0"},
		{"MaxBackoff", o.MaxBackoff >= o.MinBackoff, o.MaxBackoff, "at least MinBackoff"},
	} {
		if !setting.ok {
			return fmt.Errorf("outbox: option %s is %v, want %s", setting.name, setting.have, setting.want)
		}
	}

	return nil
}
