package loss

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Kind is the kind of a fault: one of the laboratory, or one of these.
type Kind = lab.Fault

// The faults. A seed selects them by their order, so another order changes each schedule.
const (
	// AgentKilled kills an agent as a crash would, and starts it again.
	AgentKilled Kind = "agent killed"
	// ReplicaLost kills one of two agents for good.
	ReplicaLost Kind = "replica lost"
	// OperatorKilled kills the operator as a crash would, and starts it again.
	OperatorKilled Kind = "operator killed"

	// Cut resets connections to the control plane, some sooner than others.
	Cut Kind = "cut"
	// AnswerLost ends connections in the middle of an answer of the control plane.
	AnswerLost Kind = "answer lost"
	// BlackHole drops all bytes in both directions, without an error.
	BlackHole Kind = "black hole"
	// Slow delays and throttles.
	Slow Kind = "slow"

	// WebhookRemoved removes the webhook configuration from the runtime, and puts it back.
	WebhookRemoved Kind = "webhook removed"
	// WatchLost stands in for WebhookRemoved when agents watch: a relay refuses, holds or freezes their
	// connections to the API server.
	WatchLost Kind = "watch lost"
	// WebhooksChanged replaces WebhookRemoved when agents keep their webhook configuration: it is deleted,
	// emptied or narrowed, and the agents put it back. The strength selects one of these.
	WebhooksChanged Kind = "webhooks changed"

	// BrokerKilled stands in for [lab.Unavailable] with NATS: it kills the server as a crash would, or one of
	// a cluster, and starts it again. The strength selects the one.
	BrokerKilled Kind = "broker killed"
	// OperatorCut stands in for [lab.TooFast] with NATS: it cuts the operator off from the server.
	OperatorCut Kind = "operator cut off"

	// LeaderKilled kills the replica of the operator that leads, and waits for another leader.
	LeaderKilled Kind = "leader killed"
)

// Fault is one of a schedule.
type Fault struct {
	Kind Kind
	// Start is when it begins, from the beginning of the schedule.
	Start time.Duration
	// Duration is how long it lasts.
	Duration time.Duration
	// Replica is the agent that it concerns.
	Replica int
	// Strength, 0 to 99, chooses among the variants of the fault.
	Strength int
}

// String is a short form for tables.
func (f Fault) String() string {
	return fmt.Sprintf("%.1fs %s %.1fs", f.Start.Seconds(), f.Kind, f.Duration.Seconds())
}

// Schedule is a list of faults. It depends on its seed and its options only.
type Schedule struct {
	Seed uint64
	// Duration is how long faults are made.
	Duration time.Duration
	// Mixed means that faults of different kinds overlap; otherwise there is one at a time.
	Mixed bool
	// Replicas is how many agents there are.
	Replicas int
	// MaxKeys bounds the outbox of the agents; 0 is their default.
	MaxKeys int
	// Faults are in the order of their start.
	Faults []Fault
}

// String shows the whole schedule.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v, mixed %t, %d replicas, outbox %d", s.Seed, s.Duration, s.Mixed, s.Replicas, s.MaxKeys)
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "; %s", f)
	}
	return b.String()
}

// Replace returns the schedule with other kinds of faults, at the same times.
func (s Schedule) Replace(kinds map[Kind]Kind) Schedule {
	s.Faults = slices.Clone(s.Faults)
	for i := range s.Faults {
		s.Faults[i].Kind = cmp.Or(kinds[s.Faults[i].Kind], s.Faults[i].Kind)
	}
	return s
}

// outages returns how often no event could be sent for at least a second. Attempts within that time
// do not end it.
func (s Schedule) outages() (n int) {
	for _, f := range s.Faults {
		none := slices.Contains([]Kind{lab.Refusing, lab.Unavailable, lab.TooFast, AgentKilled, WebhookRemoved}, f.Kind)
		if none && f.Duration >= time.Second {
			n++
		}
	}
	return n
}

// kills returns a schedule of n kills, each so long after the one before, and does not depend on a seed.
func kills(kind Kind, n int, every, duration time.Duration) Schedule {
	s := Schedule{Duration: time.Duration(n+1) * every, Replicas: 1}
	for i := range n {
		s.Faults = append(s.Faults, Fault{Kind: kind, Start: time.Duration(i)*every + every/2, Duration: duration, Strength: i})
	}
	return s
}

// slot is about the time of a fault and of the pause after it.
const slot = 5 * time.Second

// NewSchedule returns the schedule of a seed. The order in which it draws must not change: seeds
// are kept in issues.
func NewSchedule(seed uint64, duration time.Duration) Schedule {
	d := dealer{Rand: rand.New(rand.NewPCG(seed, 0)), duration: duration} // It has to be repeatable.
	s := Schedule{Seed: seed, Duration: duration, Mixed: d.oneOf(2), Replicas: 1}
	if d.oneOf(2) {
		s.Replicas = 2
	}
	if d.oneOf(4) {
		s.MaxKeys = 2 + d.IntN(6)
	}
	if s.Mixed {
		s.Faults = slices.Concat(d.track(paths(), 1), d.track(processes(s.Replicas), 1),
			d.track([]Kind{WebhookRemoved}, 3))
	} else {
		s.Faults = d.track(slices.Concat(paths(), processes(s.Replicas), []Kind{WebhookRemoved}), 1)
	}
	for i := range s.Faults {
		s.Faults[i].Replica = d.IntN(s.Replicas)
	}
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return int(a.Start - b.Start) })
	return s
}

func paths() []Kind {
	return []Kind{
		Cut, AnswerLost, BlackHole, lab.HalfOpen, Slow, lab.Hanging, lab.Refusing, lab.Unavailable, lab.TooFast,
	}
}

func processes(replicas int) []Kind {
	if replicas > 1 {
		return []Kind{AgentKilled, OperatorKilled, ReplicaLost}
	}
	return []Kind{AgentKilled, OperatorKilled}
}

// dealer draws faults.
type dealer struct {
	*rand.Rand

	duration time.Duration
}

// oneOf is true once in n times.
func (d dealer) oneOf(n int) bool { return d.IntN(n) == 0 }

// track fills the time with faults that do not overlap. Each has a stretch of so many slots, or
// twice as many, of which it lasts a part.
func (d dealer) track(kinds []Kind, slots int) (faults []Fault) {
	var deck []Kind
	for from := time.Duration(0); from < d.duration; {
		if len(deck) == 0 {
			deck = d.shuffled(kinds)
		}
		stretch := time.Duration(slots*(1+d.IntN(2))) * slot
		if from+2*stretch > d.duration {
			stretch = d.duration - from // The last one takes the rest.
		}
		faults = append(faults, d.fault(deck[0], from, stretch))
		deck, from = deck[1:], from+stretch
	}
	return faults
}

func (d dealer) shuffled(kinds []Kind) []Kind {
	deck := slices.Clone(kinds)
	d.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

// The shortest time for which a removed webhook is noticed by a canary that looks every second,
// twice: a shorter removal is not noticed (docs/maintainers/design.md).
const leastRemoved = 3500 * time.Millisecond

func (d dealer) fault(kind Kind, from, stretch time.Duration) Fault {
	f := Fault{
		Kind: kind, Start: from + d.part(stretch, 0, 25), Duration: d.part(stretch, 10, 70),
		Strength: d.IntN(100),
	}
	if kind == WebhookRemoved {
		f.Duration = max(f.Duration, leastRemoved)
	}
	return f
}

// part returns a part of a time, at random from least to most percent.
func (d dealer) part(of time.Duration, least, most int) time.Duration {
	return of * time.Duration(least*100+d.IntN((most-least)*100)) / 10_000
}

func TestTwentySeedsBringEveryFault(t *testing.T) {
	const seeds = 20
	seen := make(map[Kind]int)
	for seed := range uint64(seeds) {
		s := NewSchedule(seed, 30*time.Second)
		t.Log(s)
		for option, chosen := range map[Kind]bool{"mixed": s.Mixed, "replicas": s.Replicas > 1, "tiny outbox": s.MaxKeys > 0} {
			if chosen {
				seen[option]++
			}
		}
		for _, f := range s.Faults {
			seen[f.Kind]++
			if f.Start < 0 || f.Duration <= 0 || f.Start+f.Duration > s.Duration {
				t.Errorf("seed %d: fault %v is not within %v", seed, f, s.Duration)
			}
		}
	}
	options := []Kind{"mixed", "replicas", "tiny outbox"}
	for _, kind := range slices.Concat(paths(), processes(2), []Kind{WebhookRemoved}, options) {
		if seen[kind] < 2 || slices.Contains(options, kind) && seen[kind] == seeds {
			t.Errorf("%q comes %d times in 20 seeds, want 2 or more, and an option not always", kind, seen[kind])
		}
	}
}
