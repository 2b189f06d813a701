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

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kyma     core.Manager   = "kyma"
	prod     core.RuntimeID = "prod"
	interval                = 30 * time.Second
)

// rig is a fleet that runs in the bubble of a synctest.
type rig struct {
	t     *testing.T
	fleet *fleet.Fleet

	mu          sync.Mutex
	refuse      bool
	resyncs     []core.RuntimeID
	causes      []string
	transitions []string
}

// inBubble runs a test against a fleet in fake time.
func inBubble(t *testing.T, opts fleet.Options, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t}

		if opts.Random == nil {
			opts.Random = func() float64 { return 0.5 }
		}

		opts.Resynced = r.resynced

		f, err := fleet.New(opts)
		if err != nil {
			t.Fatal(err)
		}

		r.fleet = f
		f.OnChange(r.changed)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)

		go func() { ended <- f.Start(ctx, map[core.Manager]core.Handler{kyma: core.HandlerFunc(r.handle)}) }()

		test(r)
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
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

func (r *rig) resynced(_ core.Manager, cause string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.causes = append(r.causes, cause)
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

	if s := r.fleet.Get(prod, kyma); s.State != state || s.Reason != reason {
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
}

// send sends messages in as few batches as they fit into.
func send(f *fleet.Fleet, runtime core.RuntimeID, manager core.Manager, messages ...message) {
	var batch core.Batch

	for i, m := range messages {
		batch.Epoch, batch.Heartbeat = m.epoch, m.beat
		if m.beat == nil {
			batch.Events = append(batch.Events, m.Numbered)
		}

		if i+1 == len(messages) || m.beat != nil || messages[i+1].epoch != m.epoch {
			m.peer.ID = runtime
			f.Observe(m.peer, manager, batch, nil)

			batch = core.Batch{}
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
	m.peer.NotBefore, m.peer.NotAfter = notBefore, notAfter

	return m
}

func with(event message, change func(*core.Heartbeat)) message {
	change(event.beat)

	return event
}

// settle gives scheduled resyncs the time to be delivered.
func settle() { time.Sleep(5 * time.Second) }

func TestUnknownUntilTheFirstHeartbeat(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.wantState(fleet.Unknown, "")
		r.observe(message{}) // Contract v2: no epoch, no heartbeat.
		r.wantState(fleet.Unknown, "")

		if s := r.fleet.Get(prod, kyma); s.LastSeen.IsZero() {
			t.Error("an event without epoch does not count as heard")
		}

		settle()
		r.wantCauses()
	})
}

func TestFreshUntilTwoHeartbeatsAreMissed(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
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
			t.Errorf("transitions (-want +got):\n%s", diff)
		}
	})
}

func TestEventsKeepARuntimeFresh(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))

		for n := range 10 {
			time.Sleep(interval)
			r.observe(changed("e", uint64(n+2)))
			r.wantState(fleet.Fresh, "")
		}
	})
}

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

// A restored process repeats numbers that were used before.
func TestRestoredProcessIsNoticed(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), changed("e", 2), beat("e", 9, 2))
		time.Sleep(2 * time.Minute)
		settle()
		r.observe(beat("e", 4, 1))
		settle()
		r.wantCauses("went_back")
	})
}

func TestAgentsResyncReplacesOurs(t *testing.T) {
	inBubble(t, fleet.Options{ResyncJitter: 10 * time.Second}, func(r *rig) {
		r.observe(changed("e", 5))
		time.Sleep(time.Second)
		r.observe(resync("e", 6))
		time.Sleep(time.Minute)
		r.wantCauses()
	})
}

func TestRefusedResyncIsTriedAgain(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.setRefuse(true)
		r.observe(changed("e", 5))
		time.Sleep(time.Minute)
		r.wantCauses()
		r.setRefuse(false)
		time.Sleep(3 * time.Second)
		r.wantCauses("new_epoch")
	})
}

func TestRefusedResyncOfARuntimeReplacesNone(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		// A batch of which the resync was not taken: the runtime sends it again, if it lives that
		// long.
		r.fleet.Observe(core.Peer{ID: prod}, kyma, core.Batch{Epoch: "e", Events: []core.Numbered{
			{WatchEvent: core.WatchEvent{Resync: true}, Sequence: 1}, {Sequence: 2},
		}}, core.EventErrors{0: errors.New("refused")})
		time.Sleep(3 * time.Second)
		r.wantCauses("new_epoch")
	})
}

func TestLostReplicaLeadsToAResync(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		r.observe(resync("f", 1), beat("f", 1, 1))

		for n := range uint64(5) {
			time.Sleep(interval)
			r.observe(beat("e", n+2, 1))
			r.wantState(fleet.Fresh, "")
		}

		settle()
		r.wantCauses("replica_lost", "replica_lost") // The second one is the resend.

		if n := len(r.fleet.Get(prod, kyma).Replicas); n != 1 {
			t.Errorf("%d replicas are known, want 1", n)
		}
	})
}

// A process that is restarted in its place needs one resync, not another when its former life is
// missed.
func TestRestartInPlaceLeadsToOneResync(t *testing.T) {
	named := func(event message) message {
		return with(event, func(b *core.Heartbeat) { b.Instance = "pod-1" })
	}

	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(changed("e", 1), named(beat("e", 1, 1)))
		settle()
		r.wantCauses("new_epoch")
		r.observe(changed("f", 1), named(beat("f", 1, 1)))

		for n := range uint64(5) {
			time.Sleep(interval)
			r.observe(named(beat("f", n+2, 1)))
		}

		r.wantCauses("new_epoch", "new_epoch", "new_epoch") // The third one is the resend of the second.
	})
}

func TestLeavingInGoodOrderLeadsToNone(t *testing.T) {
	leaving := with(beat("f", 2, 1), func(b *core.Heartbeat) { b.Leaving = true })

	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		r.observe(resync("f", 1), beat("f", 1, 1))
		r.observe(leaving)

		for n := range uint64(5) {
			time.Sleep(interval)
			r.observe(beat("e", n+2, 1))
		}

		r.wantCauses()
		r.wantState(fleet.Fresh, "")
	})
}

func TestRuntimeThatLeftIsStaleAtOnce(t *testing.T) {
	leaving := with(beat("e", 2, 1), func(b *core.Heartbeat) { b.Leaving = true })

	inBubble(t, fleet.Options{}, func(r *rig) {
		r.observe(resync("e", 1), beat("e", 1, 1))
		r.observe(leaving)
		r.wantState(fleet.Stale, reasons.Stopped)
	})
}

func TestDegradedNamesTheWorstReason(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		number := uint64(1)
		say := func(change func(*core.Heartbeat)) {
			r.observe(with(beat("e", number, 0), change))

			number++
		}

		expiring := time.Now().Add(time.Hour)

		say(func(*core.Heartbeat) {})
		r.wantState(fleet.Fresh, "")
		r.observe(showing(beat("e", number, 0), expiring.Add(-90*24*time.Hour), expiring))

		number++

		r.wantState(fleet.Degraded, reasons.CertificateExpiring)
		say(func(b *core.Heartbeat) { b.ConfigError = "managers: broken" })
		r.wantState(fleet.Degraded, reasons.Configuration)
		say(func(b *core.Heartbeat) { b.KeyMaterialError = "tls.key is empty" })
		r.wantState(fleet.Degraded, reasons.KeyMaterial)
		say(func(b *core.Heartbeat) { b.OldestPending = 2 * time.Minute })
		r.wantState(fleet.Degraded, reasons.PendingTooLong)
		say(func(b *core.Heartbeat) { b.Dropped = map[string]int64{"overflow": 3} })
		r.wantState(fleet.Degraded, reasons.Dropping)
		say(func(b *core.Heartbeat) {
			b.Dropped, b.Canary = map[string]int64{"overflow": 3}, core.CanaryLost
		})
		r.wantState(fleet.Degraded, reasons.CanaryLost)
		say(func(b *core.Heartbeat) { b.Dropped = map[string]int64{"overflow": 3} })
		r.wantState(fleet.Degraded, reasons.Dropping)
		time.Sleep(interval)
		say(func(b *core.Heartbeat) { b.Dropped = map[string]int64{"overflow": 3} })
		time.Sleep(interval + time.Second)
		r.wantState(fleet.Fresh, "")
	})
}

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

func TestRequeueAfterTrustsTheFreshOnly(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		want := func(want time.Duration) {
			t.Helper()

			if got := r.fleet.RequeueAfter(prod); got != want {
				t.Errorf("RequeueAfter %v, want %v", got, want)
			}
		}

		want(time.Minute)
		r.observe(beat("e", 1, 0))
		want(30 * time.Minute)
		send(r.fleet, prod, "other", with(beat("e", 1, 0), func(b *core.Heartbeat) { b.Canary = core.CanaryLost }))
		want(time.Minute)
	})
}

func TestRequeueAfterIsSpread(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 54 * time.Second, 0.5: time.Minute} {
		f, err := fleet.New(fleet.Options{Random: func() float64 { return random }})
		if err != nil {
			t.Fatal(err)
		}

		if got := f.RequeueAfter(prod); got != want {
			t.Errorf("random %v: %v, want %v", random, got, want)
		}
	}
}

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
			b.Dropped = map[string]int64{}
			for n := range 100 {
				b.Dropped[fmt.Sprint("reason_", n)] = 1
			}
		}))
		dropped, sum := r.fleet.Get("1", kyma).Replicas[0].Heartbeat.Dropped, int64(0)
		for _, n := range dropped {
			sum += n
		}
		if len(dropped) != 16 || sum != 100 {
			t.Errorf("%d reasons with %d drops are kept, want 16 with 100", len(dropped), sum)
		}
	})
}

func TestForgetting(t *testing.T) {
	inBubble(t, fleet.Options{ForgetAfter: time.Hour}, func(r *rig) {
		r.observe(changed("e", 1))
		r.fleet.Forget(prod)
		settle()
		r.wantCauses()
		r.observe(resync("e", 1), beat("e", 1, 1))
		time.Sleep(time.Hour + time.Minute)

		count := 0

		r.fleet.Range(func(fleet.Status) bool {
			count++

			return true
		})

		if count != 0 {
			t.Errorf("%d runtimes are known after an hour of silence, want none", count)
		}
	})
}

func TestWithoutCANamesWhoIsNotReady(t *testing.T) {
	trusting := func(epoch string, fingerprints ...string) message {
		return with(beat(epoch, 1, 0), func(b *core.Heartbeat) { b.CAFingerprints = fingerprints })
	}
	left := with(beat("e", 2, 0), func(b *core.Heartbeat) { b.Leaving = true })

	inBubble(t, fleet.Options{}, func(r *rig) {
		send(r.fleet, "both", kyma, trusting("e", "old", "new"), trusting("f", "old", "new"))
		send(r.fleet, "half", kyma, trusting("e", "old", "new"), trusting("f", "old"))
		send(r.fleet, "old", kyma, trusting("e", "old"))
		send(r.fleet, "mute", kyma, message{})
		// What was watched for a manager is not any more, and the agents that spoke to it have
		// ended.
		send(r.fleet, "moved", "former", trusting("e", "old"), left)
		send(r.fleet, "moved", kyma, trusting("f", "old", "new"))
		send(r.fleet, "left", kyma, trusting("e", "old", "new"), left)

		if diff := cmp.Diff([]core.RuntimeID{"half", "left", "mute", "old"}, r.fleet.WithoutCA("new")); diff != "" {
			t.Errorf("without the new one (-want +got):\n%s", diff)
		}
	})
}

func TestObserversMayAsk(t *testing.T) {
	inBubble(t, fleet.Options{}, func(r *rig) {
		asked := fleet.Unknown

		r.fleet.OnChange(func(change fleet.Transition) {
			asked = r.fleet.Get(change.To.Runtime, change.To.Manager).State
		})
		r.observe(beat("e", 1, 0))

		if asked != fleet.Fresh {
			t.Errorf("the observer saw %s, want fresh", asked)
		}
	})
}

func TestNewNamesWrongOptions(t *testing.T) {
	if _, err := fleet.New(fleet.Options{ResyncsPerSecond: -1}); err == nil || !strings.Contains(err.Error(), "ResyncsPerSecond") {
		t.Errorf("error %v, want one that names the option", err)
	}
	for name, opts := range map[string]fleet.Options{
		"PollUnproved":  {PollUnproved: time.Hour},
		"PollOtherwise": {PollFresh: time.Hour, PollUnproved: time.Minute, PollOtherwise: 2 * time.Minute},
	} {
		if _, err := fleet.New(opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one that names %s", err, name)
		}
	}
	if _, err := fleet.New(fleet.Options{PollFresh: time.Second}); err != nil {
		t.Errorf("the others are as short by default: %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	f, err := fleet.New(fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	handler := core.HandlerFunc(func(context.Context, core.Delivery) error { return errors.New("unused") })
	if err := f.Start(ctx, map[core.Manager]core.Handler{kyma: handler}); err != nil {
		t.Error(err)
	}
}

// A map function may wait for the API server of its runtime: 100 of them delayed all others by 8 min.
func TestDeliveriesThatHangDelayOthersLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := fleet.New(fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}

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
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)

		go func() { ended <- f.Start(ctx, map[core.Manager]core.Handler{kyma: handler}) }()

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

		stop()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
