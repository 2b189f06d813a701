package loss

import (
	"testing"
	"time"
)

func TestTwentySeedsBringEveryFault(t *testing.T) {
	seen := make(map[Kind]int)
	mixed, replicas, bounded := 0, 0, 0
	for seed := range uint64(20) {
		s := NewSchedule(seed, 30*time.Second)
		t.Log(s)
		for _, f := range s.Faults {
			seen[f.Kind]++
			if f.Start < 0 || f.Duration <= 0 || f.Start+f.Duration > s.Duration {
				t.Errorf("seed %d: fault %v is not within %v", seed, f, s.Duration)
			}
		}
		if s.Mixed {
			mixed++
		}
		if s.Replicas > 1 {
			replicas++
		}
		if s.MaxKeys > 0 {
			bounded++
		}
	}
	for _, kind := range []Kind{
		AgentKilled, ReplicaLost, OperatorKilled, Cut, AnswerLost, BlackHole,
		HalfOpen,
		Slow, Hanging, Refused, Unavailable, TooMany, WebhookRemoved,
	} {
		if seen[kind] < 2 {
			t.Errorf("%q comes %d times in 20 seeds, want 2 or more", kind, seen[kind])
		}
	}
	if mixed == 0 || mixed == 20 || replicas == 0 || replicas == 20 || bounded == 0 || bounded == 20 {
		t.Errorf("of 20 seeds %d are mixed, %d have replicas, %d a tiny outbox: want some of each", mixed, replicas,
			bounded)
	}
}
