package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kyma     core.Manager   = "kyma"
	prod     core.RuntimeID = "prod"
	interval                = 30 * time.Second
)

// rig is a fleet that runs in the bubble of a synctest.
type rig struct {
	t           *testing.T
	fleet       *fleet.Fleet
	mu          sync.Mutex
	refuse      bool
	resyncs     []core.RuntimeID
	causes      []string
	transitions []string
}

// inBubble runs a test against a fleet in fake time.
func inBubble(t *testing.T, opts fleet.Options, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { playAgainst(t, opts, test) })
}

func playAgainst(t *testing.T, opts fleet.Options, play func(r *rig)) {
	t.Helper()

	r := &rig{t: t}
	if opts.Random == nil {
		opts.Random = func() float64 { return 0.5 }
	}
	opts.Resynced = r.resynced
	r.fleet = newFleet(t, opts)
	r.fleet.OnChange(r.changed)
	stop := start(t, r.fleet, kyma, core.HandlerFunc(r.handle))
	play(r)
	stop()
}

// eachPlay runs tests against fleets with the default options.
func eachPlay(t *testing.T, plays map[string]func(r *rig)) {
	t.Helper()
	for name, play := range plays {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playAgainst(t, fleet.Options{}, play) })
		})
	}
}

func newFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	f, err := fleet.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs a fleet for one manager, and returns what ends it.
func start(t *testing.T, f *fleet.Fleet, manager core.Manager, handler core.Handler) (stop func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Receiver().Start(ctx, map[core.Manager]core.Handler{manager: handler}) }()

	return func() {
		t.Helper()

		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func (r *rig) handle(_ context.Context, d core.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse {
		return core.ErrNotReady
	}

	if !d.Event.Resync || d.Manager != kyma {
		r.t.Errorf("delivered %+v, want a resync for %s", d, kyma)
	}

	r.resyncs = append(r.resyncs, d.Runtime)
	return nil
}

func (r *rig) resynced(resync hook.Resync) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.causes = append(r.causes, string(resync.Cause))
}

func (r *rig) changed(change fleet.Transition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions = append(r.transitions, fmt.Sprintf("%s %s→%s %s",
		change.To.Runtime, change.From, change.To.State, change.To.Reason))
}

func (r *rig) setRefuse(refuse bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

func (r *rig) wantCauses(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.causes, want) {
		r.t.Errorf("resyncs because of %q, want %q", r.causes, want)
	}

	if len(r.resyncs) != len(want) {
		r.t.Errorf("%d resyncs delivered, want %d", len(r.resyncs), len(want))
	}
}

func (r *rig) wantState(state fleet.State, reason string) {
	r.t.Helper()
	if s := r.fleet.Get(prod, kyma); s.State != state || string(s.Reason) != reason {
		r.t.Errorf("state %s %q, want %s %q", s.State, s.Reason, state, reason)
	}
}

func (r *rig) observe(messages ...message) { send(r.fleet, prod, kyma, messages...) }

// message is an event or a heartbeat of an epoch.
type message struct {
	core.Numbered
	epoch string
	beat  *core.Heartbeat
	peer  core.Peer
	kept  bool
}

// kept is an event that the handler did not take, and that stays with the transport.
func kept(m message) message {
	m.kept = true
	return m
}

type keptError struct{ error }

func (keptError) Kept() bool { return true }

// send sends messages in as few batches as they fit into.
func send(f *fleet.Fleet, runtime core.RuntimeID, manager core.Manager, messages ...message) {
	var batch core.Batch
	refused := core.EventErrors{}
	for i, m := range messages {
		batch.Epoch = m.epoch
		batch.Heartbeat = m.beat
		if m.kept {
			refused[len(batch.Events)] = keptError{core.ErrNotReady}
		}
		if m.beat == nil {
			batch.Events = append(batch.Events, m.Numbered)
		}

		if i+1 == len(messages) || m.beat != nil || messages[i+1].epoch != m.epoch {
			m.peer.ID = runtime
			f.Receiver().Observe(m.peer, manager, batch, refused)
			batch = core.Batch{}
			refused = core.EventErrors{}
		}
	}
}

func changed(epoch string, sequence uint64) message {
	return message{epoch: epoch, Numbered: core.Numbered{Sequence: sequence}}
}

func resync(epoch string, sequence uint64) message {
	return message{epoch: epoch, Numbered: core.Numbered{WatchEvent: core.WatchEvent{Resync: true}, Sequence: sequence}}
}

func beat(epoch string, number, sequence uint64) message {
	return message{epoch: epoch, beat: &core.Heartbeat{
		Number: number, Interval: interval, Sequence: sequence, Canary: core.CanaryAlive,
	}}
}

// showing is a message on a connection with a client certificate of that validity.
func showing(m message, notBefore, notAfter time.Time) message {
	m.peer.NotBefore = notBefore
	m.peer.NotAfter = notAfter
	return m
}

// leaving is the last heartbeat of a replica.
func leaving(epoch string, number, sequence uint64) message {
	return with(beat(epoch, number, sequence), func(b *core.Heartbeat) { b.Leaving = true })
}

// of is a message of an agent with that name of its instance.
func of(instance string, m message) message {
	return with(m, func(b *core.Heartbeat) { b.Instance = instance })
}

// trusting is a heartbeat of an agent with these certificate authorities.
func trusting(epoch string, number uint64, fingerprints ...string) message {
	return with(beat(epoch, number, 0), func(b *core.Heartbeat) { b.CAFingerprints = fingerprints })
}

// dropping is a heartbeat of an agent that has dropped events.
func dropping(epoch string, number, sequence uint64, events int64) message {
	return with(beat(epoch, number, sequence), func(b *core.Heartbeat) { b.Dropped = map[core.Reason]int64{"overflow": events} })
}

// started are the first messages of replicas.
func started(epochs ...string) (all []message) {
	for _, epoch := range epochs {
		all = append(all, resync(epoch, 1), beat(epoch, 1, 1))
	}
	return all
}

func with(event message, change func(*core.Heartbeat)) message {
	change(event.beat)
	return event
}

// keepBeating sends heartbeats of an epoch for a while, the first one with that number.
func (r *rig) keepBeating(epoch string, number uint64, every, length time.Duration) {
	for n := range uint64(length / every) {
		time.Sleep(every)
		r.observe(beat(epoch, number+n, 1))
	}
}

func (r *rig) wantReplicas(want int) {
	r.t.Helper()
	if n := len(r.fleet.Get(prod, kyma).Replicas); n != want {
		r.t.Errorf("%d replicas are known, want %d", n, want)
	}
}

// wantWithoutCA wants the runtimes that do not trust the authority "new".
func (r *rig) wantWithoutCA(want ...core.RuntimeID) {
	r.t.Helper()
	if got := r.fleet.WithoutCA("new"); !slices.Equal(got, want) {
		r.t.Errorf("without the new one: %v, want %v", got, want)
	}
}

// settle gives scheduled resyncs the time to be delivered.
func settle() { time.Sleep(5 * time.Second) }

// TestStates has what makes a runtime fresh, stale or degraded.
func TestStates(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		"the worst of two replicas": func(r *rig) {
			r.observe(started("e", "f")...)
			r.observe(with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Canary = core.CanaryLost }))
			r.wantState(fleet.Degraded, string(fleet.ReasonCanaryLost))
		},
		"unknown until the first heartbeat": func(r *rig) {
			r.wantState(fleet.Unknown, "")
			r.observe(message{}) // Contract v2: no epoch, no heartbeat.
			r.wantState(fleet.Unknown, "")
			if s := r.fleet.Get(prod, kyma); s.LastSeen.IsZero() {
				r.t.Error("an event without epoch does not count as heard")
			}

			settle()
			r.wantCauses()
		},
		"fresh until two heartbeats are missed": func(r *rig) {
			r.observe(started("e")...)
			r.wantState(fleet.Fresh, "")
			time.Sleep(2 * interval)
			r.wantState(fleet.Fresh, "")

			time.Sleep(2 * time.Second)
			r.wantState(fleet.Stale, "")
			r.observe(beat("e", 2, 1))
			r.wantState(fleet.Fresh, "")

			settle()
			r.wantCauses("returned")
			want := []string{"prod unknown→fresh ", "prod fresh→stale ", "prod stale→fresh "}
			if diff := cmp.Diff(want, r.transitions); diff != "" {
				r.t.Errorf("transitions (-want +got):\n%s", diff)
			}
		},
		"events keep a runtime fresh": func(r *rig) {
			r.observe(started("e")...)
			for n := range uint64(10) {
				time.Sleep(interval)
				r.observe(changed("e", n+2))
				r.wantState(fleet.Fresh, "")
			}
		},
		// The transport keeps an event that the handler refuses.
		"an event that comes again is no sign of life": func(r *rig) {
			r.observe(started("e")...)
			for range 6 {
				r.observe(kept(changed("e", 2)))
				time.Sleep(interval / 2)
			}

			r.wantState(fleet.Stale, "")
			settle()
			r.wantCauses("gap")
		},
		"a batch with such an event is none, also when it is taken": func(r *rig) {
			r.observe(started("e")...)
			r.observe(changed("e", 2), kept(changed("e", 3)))
			for range 3 {
				time.Sleep(interval)
				r.observe(changed("e", 2), kept(changed("e", 3)))
			}

			r.observe(changed("e", 2), changed("e", 3))
			r.wantState(fleet.Stale, "")
		},
		"degraded for the worst reason": func(r *rig) {
			number := uint64(0)
			dropped := map[core.Reason]int64{"overflow": 3}
			next := func(state fleet.State, reason string, change func(*core.Heartbeat)) {
				r.t.Helper()
				number++
				r.observe(with(beat("e", number, 0), change))
				r.wantState(state, reason)
			}

			next(fleet.Fresh, "", func(*core.Heartbeat) {})
			number++
			expiring := time.Now().Add(time.Hour)
			r.observe(showing(beat("e", number, 0), expiring.Add(-90*24*time.Hour), expiring))
			r.wantState(fleet.Degraded, string(fleet.ReasonCertificateExpiring))

			next(fleet.Degraded, string(fleet.ReasonConfiguration), func(b *core.Heartbeat) { b.ConfigError = "managers: broken" })
			next(fleet.Degraded, string(fleet.ReasonKeyMaterial), func(b *core.Heartbeat) { b.KeyMaterialError = "tls.key is empty" })
			next(fleet.Degraded, string(fleet.ReasonPendingTooLong), func(b *core.Heartbeat) { b.OldestPending = 2 * time.Minute })
			next(fleet.Degraded, string(fleet.ReasonDropping), func(b *core.Heartbeat) { b.Dropped = dropped })

			next(fleet.Degraded, string(fleet.ReasonCanaryFailing), func(b *core.Heartbeat) {
				b.Dropped = dropped
				b.Canary = core.CanaryFailing
				b.CanaryError = "403 Forbidden"
			})

			next(fleet.Degraded, string(fleet.ReasonWebhookChanged), func(b *core.Heartbeat) {
				b.Dropped = dropped
				b.Canary = core.CanaryFailing
				b.WebhookError = "one is missing"
			})

			next(fleet.Degraded, string(fleet.ReasonCanaryLost), func(b *core.Heartbeat) {
				b.Dropped = dropped
				b.Canary = core.CanaryLost
			})
			next(fleet.Degraded, string(fleet.ReasonDropping), func(b *core.Heartbeat) { b.Dropped = dropped })
			time.Sleep(interval)
			next(fleet.Degraded, string(fleet.ReasonDropping), func(b *core.Heartbeat) { b.Dropped = dropped })
			time.Sleep(interval + time.Second)
			r.wantState(fleet.Fresh, "")
		},
		"an agent that is set back to contract v2 is heard, but has no heartbeats": func(r *rig) {
			r.observe(resync("e", 1), leaving("e", 1, 1))
			r.wantState(fleet.Stale, string(fleet.ReasonStopped))
			for range 10 {
				r.observe(message{})
				settle()
			}

			r.wantState(fleet.Unknown, "")
			r.wantCauses("returned")
			r.observe(started("g")...)
			r.wantState(fleet.Fresh, "")
		},
		"polling trusts the fresh only": func(r *rig) {
			want := func(want time.Duration) {
				r.t.Helper()
				if got := r.fleet.RequeueAfter(prod); got != want {
					r.t.Errorf("RequeueAfter %v, want %v", got, want)
				}
			}

			want(time.Minute)
			r.observe(beat("e", 1, 0))
			want(30 * time.Minute)

			send(r.fleet, prod, "other", with(beat("e", 1, 0), func(b *core.Heartbeat) { b.Canary = core.CanaryLost }))
			want(time.Minute)
		},
		// Also when one of them causes the next.
		"observers hear of changes in their order": func(r *rig) {
			var told []fleet.State
			r.fleet.OnChange(func(change fleet.Transition) {
				if change.To.State == fleet.Fresh {
					r.observe(leaving("e", 2, 1))
				}
			})

			r.fleet.OnChange(func(change fleet.Transition) { told = append(told, change.To.State) })
			r.observe(started("e")...)
			if diff := cmp.Diff([]fleet.State{fleet.Fresh, fleet.Stale}, told); diff != "" {
				r.t.Errorf("told (-want +got):\n%s", diff)
			}
		},
		"an observer that panics silences nobody for ever": func(r *rig) {
			r.fleet.OnChange(func(change fleet.Transition) {
				if change.To.Runtime == "bad" {
					panic("inside")
				}
			})

			func() {
				defer func() { _ = recover() }() // As a listener does.
				send(r.fleet, "bad", kyma, started("e")...)
			}()
			r.observe(started("e")...)

			if n := len(r.transitions); n != 2 {
				r.t.Errorf("%d changes were told, want 2", n)
			}
		},
		"authorities that not all agents trust": func(r *rig) {
			send(r.fleet, "both", kyma, trusting("e", 1, "old", "new"), trusting("f", 1, "old", "new"))
			send(r.fleet, "half", kyma, trusting("e", 1, "old", "new"), trusting("f", 1, "old"))
			send(r.fleet, "old", kyma, trusting("e", 1, "old"))
			send(r.fleet, "mute", kyma, message{})

			// What was watched for a manager is not any more, and the agents that spoke to it have
			// ended.
			send(r.fleet, "moved", "former", trusting("e", 1, "old"), leaving("e", 2, 0))
			send(r.fleet, "moved", kyma, trusting("f", 1, "old", "new"))
			send(r.fleet, "left", kyma, trusting("e", 1, "old", "new"), leaving("e", 2, 0))
			r.wantWithoutCA("half", "left", "mute", "old")
		},
		// The agent spoke to a manager which is not served any more, and was killed. Its runtime is
		// heard by another manager.
		"a former manager says nothing of authorities": func(r *rig) {
			send(r.fleet, "skr", "former", trusting("e", 1, "old"))
			send(r.fleet, "silent", "former", trusting("e", 1, "new"))
			time.Sleep(5 * interval)
			send(r.fleet, "skr", kyma, trusting("e", 1, "old", "new"))
			r.wantWithoutCA("silent")
		},
	})
}

// A lost number, a new epoch and a lower counter each cause one resync. Repeated and reordered
// requests cause none.
func TestWhatLeadsToOneResync(t *testing.T) {
	for _, test := range []struct {
		name  string
		sends [][]message
		want  []string
	}{
		{"numbers in a row", [][]message{{resync("e", 1), changed("e", 2)}, {changed("e", 3)}, {beat("e", 1, 3)}}, nil},
		{"sent twice", [][]message{{resync("e", 1), changed("e", 2)}, {changed("e", 2)}, {changed("e", 3)}}, nil},
		{"new epoch that resyncs itself", [][]message{{resync("e", 1)}}, nil},
		{"new epoch that does not", [][]message{{changed("e", 1)}}, []string{"new_epoch"}},
		{"new epoch by heartbeat", [][]message{{beat("e", 1, 7)}}, []string{"new_epoch"}},
		{"listener restarted in the middle", [][]message{{changed("e", 812)}, {changed("e", 813)}}, []string{"new_epoch"}},
		{"gap", [][]message{{resync("e", 1)}, {changed("e", 3)}}, []string{"gap"}},
		{"kept by the transport", [][]message{{resync("e", 1)}, {kept(changed("e", 2))}, {changed("e", 3)}, {beat("e", 1, 3)}}, []string{"gap"}},
		{"handed back, and kept then", [][]message{{resync("e", 1)}, {changed("e", 2), changed("e", 3)}, {kept(changed("e", 3))}}, []string{"gap"}},
		{"kept again", [][]message{{resync("e", 1), changed("e", 2)}, {kept(changed("e", 3))}, {kept(changed("e", 3))}, {changed("e", 3)}}, []string{"gap"}},
		{"resync kept", [][]message{{kept(resync("e", 1))}}, []string{"new_epoch"}},
		{"gaps at once", [][]message{{resync("e", 1)}, {changed("e", 3), changed("e", 5)}, {changed("e", 9)}}, []string{"gap"}},
		{"gap before a heartbeat", [][]message{{resync("e", 1)}, {beat("e", 1, 2)}}, []string{"gap"}},
		{"counter went back", [][]message{{resync("e", 1), changed("e", 2), beat("e", 1, 2)}, {beat("e", 2, 1)}}, []string{"went_back"}},
		{"heartbeat overtaken", [][]message{{resync("e", 1), beat("e", 2, 1)}, {changed("e", 2)}, {beat("e", 1, 0)}}, nil},
		{"two replicas", [][]message{
			{resync("e", 1), beat("e", 1, 1)},
			{resync("f", 1), beat("f", 1, 1)},
			{changed("e", 2)},
			{changed("f", 2)},
			{beat("e", 2, 2)},
			{beat("f", 2, 2)},
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, fleet.Options{}, func(r *rig) {
				for _, events := range test.sends {
					r.observe(events...)
				}
				settle()
				r.wantCauses(test.want...)
			})
		})
	}
}

// TestResyncs has what leads to a resync beside single requests.
func TestResyncs(t *testing.T) {
	eachPlay(t, map[string]func(r *rig){
		"kept, and again after its process has left": func(r *rig) {
			r.observe(resync("e", 1))
			r.observe(kept(changed("e", 2)))
			settle()
			r.observe(leaving("e", 2, 2))
			settle()
			r.observe(kept(changed("e", 2)))
			settle()
			r.wantCauses("gap")
		},
		// A restored process repeats numbers that were used before.
		"a restored process": func(r *rig) {
			r.observe(resync("e", 1), changed("e", 2), beat("e", 9, 2))
			time.Sleep(2 * time.Minute)
			settle()
			r.observe(beat("e", 4, 1))
			settle()
			r.wantCauses("went_back")
		},
		// A gateway may repeat requests, and a stream delivers some again.
		"a new fleet hears old heartbeats after an event": func(r *rig) {
			r.observe(changed("e", 812))
			settle()
			r.observe(beat("e", 9, 800))
			r.observe(beat("e", 10, 805))
			settle()
			r.observe(changed("e", 813))
			r.observe(beat("e", 12, 813))
			settle()
			r.wantCauses("new_epoch")

			r.observe(beat("e", 13, 801))
			settle()
			r.wantCauses("new_epoch", "went_back")
		},
		"one that is refused is tried again": func(r *rig) {
			r.setRefuse(true)
			r.observe(changed("e", 5))
			time.Sleep(time.Minute)
			r.wantCauses()

			r.setRefuse(false)
			time.Sleep(3 * time.Second)
			r.wantCauses("new_epoch")
		},
		// The runtime sends the resync that was not taken again, if it lives that long.
		"a refused resync of a runtime replaces none": func(r *rig) {
			r.fleet.Receiver().Observe(core.Peer{ID: prod}, kyma, core.Batch{Epoch: "e", Events: []core.Numbered{
				{WatchEvent: core.WatchEvent{Resync: true}, Sequence: 1}, {Sequence: 2},
			}}, core.EventErrors{0: errors.New("refused")})
			time.Sleep(3 * time.Second)
			r.wantCauses("new_epoch")
		},
		// It needs no other one when the former life is missed.
		"a process that is restarted in its place": func(r *rig) {
			r.observe(changed("e", 1), of("pod-1", beat("e", 1, 1)))
			settle()
			r.wantCauses("new_epoch")

			r.observe(changed("f", 1), of("pod-1", beat("f", 1, 1)))
			for n := range uint64(5) {
				time.Sleep(interval)
				r.observe(of("pod-1", beat("f", n+2, 1)))
			}

			r.wantCauses("new_epoch", "new_epoch", "new_epoch") // The third one is the resend of the second.
		},
		"a replica that leaves in good order": func(r *rig) {
			r.observe(append(started("e", "f"), leaving("f", 2, 1))...)
			r.keepBeating("e", 2, interval, 5*interval)
			r.wantCauses()
			r.wantState(fleet.Fresh, "")
		},
		"replicas that return": func(r *rig) {
			r.observe(started("e", "f")...)
			time.Sleep(5 * interval)
			r.wantState(fleet.Stale, "")

			r.observe(beat("e", 2, 1))
			time.Sleep(interval)
			r.observe(beat("f", 2, 1))

			for n := range uint64(5) {
				time.Sleep(interval)
				r.observe(beat("e", n+3, 1))
				r.observe(beat("f", n+3, 1))
			}

			r.wantState(fleet.Fresh, "")
			r.wantCauses("returned")
			r.wantReplicas(2)
		},
		// The resync of the return replaces the events of the other replica. That must not keep
		// certificate authorities from being exchanged either.
		"a replica that does not return is covered": func(r *rig) {
			r.observe(started("e", "f")...)
			time.Sleep(5 * interval)
			for n := range uint64(5) {
				r.observe(with(beat("e", n+2, 1), func(b *core.Heartbeat) { b.CAFingerprints = []string{"new"} }))
				time.Sleep(interval)
			}

			r.wantCauses("returned", "replica_lost") // The resend, for the writes that the lost one has reviewed.
			r.wantWithoutCA()
		},
		// A mistake, but no reason to look at their runtime for ever.
		"two processes with one name": func(r *rig) {
			for n := range uint64(10) {
				r.observe(of("agent", beat("e", n+1, 0)))
				settle()
				r.observe(of("agent", beat("f", n+1, 0)))
				time.Sleep(interval)
			}
			r.wantCauses("new_epoch", "new_epoch", "new_epoch") // The third one is the resend of the second.
		},
		"the highest number is no gap": func(r *rig) {
			const highest = 1<<64 - 1
			r.observe(resync("e", highest))
			r.observe(changed("e", highest))
			settle()
			r.wantCauses()
		},
		// The first heartbeats of a new agent may be lost on their way. Until the next one, its
		// events do not count as a return each.
		"events before a heartbeat": func(r *rig) {
			r.observe(started("e")...)
			time.Sleep(5 * interval)
			r.wantState(fleet.Stale, "")

			for n := range uint64(9) {
				r.observe(changed("f", n+9))
				time.Sleep(3 * time.Second)
			}

			r.observe(beat("f", 3, 17))
			r.wantState(fleet.Fresh, "")
			settle()
			r.wantCauses("new_epoch")
		},
	})
}

// A resync of the agent replaces that of the fleet, unless it is for one owner.
func TestAgentsResyncReplacesOurs(t *testing.T) {
	owned := resync("e", 6)
	owned.Owner = types.NamespacedName{Namespace: "kcp-system", Name: "one"}
	for name, test := range map[string]struct {
		own  message
		want []string
	}{"of the runtime": {resync("e", 6), nil}, "of one owner": {owned, []string{"new_epoch"}}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fleet.Options{ResyncJitter: 10 * time.Second}, func(r *rig) {
				r.observe(changed("e", 5))
				time.Sleep(time.Second)
				r.observe(test.own)
				time.Sleep(time.Minute)
				r.wantCauses(test.want...)
			})
		})
	}
}

// Resyncs of many runtimes that are due together are spread over time, and none is lost.
func TestResyncsArePaced(t *testing.T) {
	inBubble(t, fleet.Options{ResyncsPerSecond: 10}, func(r *rig) {
		for n := range 100 {
			send(r.fleet, core.RuntimeID(strconv.Itoa(n)), kyma, changed("e", 1))
		}

		time.Sleep(5 * time.Second)
		r.mu.Lock()
		early := len(r.resyncs)
		r.mu.Unlock()
		if early < 20 || early > 50 {
			t.Errorf("%d resyncs in 5 s, want 10 each second after the jitter", early)
		}

		time.Sleep(time.Minute)
		r.mu.Lock()
		defer r.mu.Unlock()
		slices.Sort(r.resyncs)
		if n := len(slices.Compact(r.resyncs)); n != 100 {
			t.Errorf("%d runtimes were resynced, want all 100", n)
		}
	})
}

// Jitter only shortens the time, so that runtimes do not come back together.
func TestRequeueAfterIsSpread(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 54 * time.Second, 0.5: time.Minute} {
		f := newFleet(t, fleet.Options{Random: func() float64 { return random }})
		if got := f.RequeueAfter(prod); got != want {
			t.Errorf("random %v: %v, want %v", random, got, want)
		}
	}
}

// Runtimes, the replicas of a runtime and the drop reasons of a heartbeat are foreign input.
func TestMemoryIsBounded(t *testing.T) {
	inBubble(t, fleet.Options{MaxStatuses: 2}, func(r *rig) {
		for n := range 5 {
			send(r.fleet, core.RuntimeID(strconv.Itoa(n)), kyma, resync("e", 1))
		}

		if n := r.fleet.Summaries()[kyma].Untracked; n != 3 {
			t.Errorf("%d runtimes untracked, want 3", n)
		}

		for n := range 100 {
			send(r.fleet, "0", kyma, resync(fmt.Sprint("epoch-", n), 1))
		}

		if n := len(r.fleet.Get("0", kyma).Replicas); n != 8 {
			t.Errorf("%d replicas are kept, want 8", n)
		}

		send(r.fleet, "1", kyma, with(beat("e", 1, 1), func(b *core.Heartbeat) {
			b.Dropped = map[core.Reason]int64{}
			for n := range 100 {
				b.Dropped[core.Reason(fmt.Sprint("reason_", n))] = 1
			}
		}))

		dropped := r.fleet.Get("1", kyma).Replicas[0].Heartbeat.Dropped
		sum := int64(0)
		for _, n := range dropped {
			sum += n
		}

		if len(dropped) != 16 || sum != 100 {
			t.Errorf("%d reasons with %d drops are kept, want 16 with 100", len(dropped), sum)
		}
	})
}

// Requests that were under way do not bring a forgotten runtime back. A later request or Expect
// does.
func TestForgetting(t *testing.T) {
	inBubble(t, fleet.Options{ForgetAfter: time.Hour}, func(r *rig) {
		r.fleet.Forget(prod) // A new fleet has not heard of it.
		r.observe(changed("e", 1))
		if r.knows(kyma) {
			t.Error("an agent that ends makes its runtime known")
		}

		time.Sleep(time.Minute)
		r.observe(changed("e", 1))
		r.fleet.Forget(prod)
		r.observe(beat("e", 1, 1)) // It was under way.
		settle()
		r.wantCauses()
		if r.knows(kyma) {
			t.Error("a request that was under way brings a forgotten runtime back")
		}

		time.Sleep(time.Minute)
		r.observe(resync("e", 2), beat("e", 2, 2)) // Another object represents it.
		r.wantState(fleet.Fresh, "")

		r.fleet.Forget(prod)
		r.fleet.Expect(prod, kyma)
		r.observe(beat("e", 3, 2))
		r.wantState(fleet.Fresh, "")

		r.fleet.Forget(prod)
		time.Sleep(time.Minute)
		r.observe(resync("e", 3), beat("e", 4, 3))
		time.Sleep(time.Hour + time.Minute)
		if r.knows(kyma) {
			t.Error("the runtime is known after an hour of silence")
		}
	})
}

// The error names the option. Poll times that contradict each other are refused, too.
func TestWrongArgumentsAreRefused(t *testing.T) {
	for name, opts := range map[string]fleet.Options{
		"ResyncsPerSecond": {ResyncsPerSecond: -1},
		"PollUnproved":     {PollUnproved: time.Hour},
		"PollOtherwise":    {PollFresh: time.Hour, PollUnproved: time.Minute, PollOtherwise: 2 * time.Minute},
	} {
		if _, err := fleet.New(opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one that names %s", err, name)
		}
	}

	if _, err := fleet.New(fleet.Options{PollFresh: time.Second}); err != nil {
		t.Errorf("the others are as short by default: %v", err)
	}

	defer func() {
		if recover() == nil {
			t.Error("an observer that is nil is taken")
		}
	}()

	newFleet(t, fleet.Options{}).OnChange(nil)
}

// A map function may wait for the API server of its runtime: 100 of them delayed all others by 8
// min.
func TestDeliveriesThatHangDelayOthersLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, fleet.Options{})
		var running, most atomic.Int64
		delivered := make(chan time.Time, 100)
		handler := core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
			if d.Runtime == prod {
				delivered <- time.Now()
				return nil
			}
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		})
		defer start(t, f, kyma, handler)()

		for n := range 100 {
			send(f, core.RuntimeID(fmt.Sprint("hangs-", n)), kyma, beat("e", 1, 0))
		}

		time.Sleep(time.Minute)
		send(f, prod, kyma, beat("e", 1, 0))
		asked := time.Now()
		if took := (<-delivered).Sub(asked); took > 30*time.Second {
			t.Errorf("a resync waited %v behind 100 that hang, want at most 30 s", took)
		}

		if n := most.Load(); n > 32 {
			t.Errorf("%d deliveries at the same time, want at most 32", n)
		}
	})
}

// A runtime may be silent for two of its intervals, however short ForgetAfter is.
func TestRuntimeThatBeatsSeldomIsNotForgotten(t *testing.T) {
	slow := func(number uint64) message {
		return with(beat("e", number, 1), func(b *core.Heartbeat) { b.Interval = time.Hour })
	}
	inBubble(t, fleet.Options{ForgetAfter: time.Minute}, func(r *rig) {
		r.observe(resync("e", 1), slow(1))
		time.Sleep(59 * time.Minute)
		r.wantState(fleet.Fresh, "")

		r.observe(slow(2))
		settle()
		r.wantCauses()

		time.Sleep(3 * time.Hour)
		r.wantState(fleet.Unknown, "")
	})
}

// A runtime that makes up epochs gets no more than a resync at a time, and does not push out a
// replica that is heard.
func TestInventedEpochs(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		for n := range 1000 {
			r.observe(resync("real", uint64(n+1)), beat("real", uint64(n+1), uint64(n+1)))
			send(r.fleet, "attacker", kyma, changed("epoch-"+strconv.Itoa(n), 1<<63))
			time.Sleep(10 * time.Millisecond)
		}

		for n := range 50 {
			r.observe(changed("invented-"+strconv.Itoa(n), 1), beat("real", uint64(n+1001), 1000))
			time.Sleep(time.Millisecond)
		}

		settle()
		known := r.fleet.Get(prod, kyma).Replicas
		if len(known) > 8 || !slices.ContainsFunc(known, func(p fleet.Replica) bool { return p.Epoch == "real" }) {
			t.Errorf("%d replicas are kept, want at most 8, and the one that is heard", len(known))
		}

		attacks := len(slices.DeleteFunc(r.resyncs, func(runtime core.RuntimeID) bool { return runtime != "attacker" }))
		// 10 s, and each takes the jitter, here 1 s, before the next can come.
		if attacks > 12 {
			t.Errorf("1000 invented epochs led to %d resyncs, want one at a time", attacks)
		}
	})
}
