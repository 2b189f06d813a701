package chaos_test

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/chaos"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// action is the beginning or the end of a fault.
type action struct {
	at    time.Duration
	fault chaos.Fault
	do    func(chaos.Fault)
}

// play makes the faults of a schedule, and returns when they are over and everything runs again,
// with the times of both.
func (s *scene) play(schedule chaos.Schedule) (began, ended time.Duration) {
	s.t.Helper()
	var actions []action
	for _, f := range schedule.Faults {
		actions = append(actions, action{f.Start, f, s.begin}, action{f.Start + f.Duration, f, s.end})
	}

	slices.SortStableFunc(actions, func(a, b action) int { return int(a.at - b.at) })

	began = record.Now()
	for _, a := range actions {
		s.wait(began + a.at)
		a.do(a.fault)
	}

	s.wait(began + schedule.Duration)
	return began, record.Now()
}

// wait reads the records of the operator until that time.
func (s *scene) wait(until time.Duration) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for left := until - record.Now(); left > 0; left = until - record.Now() {
		select {
		case <-tick.C:
			s.read()
		case <-time.After(left):
		}
	}
}

func (s *scene) begin(f chaos.Fault) {
	s.t.Helper()
	switch f.Kind {
	case chaos.AgentKilled:
		if one := s.senders[f.Replica]; one.Running() {
			one.Kill()
		}
	case chaos.ReplicaLost:
		s.lose(s.senders[f.Replica])
	case chaos.OperatorKilled:
		s.operator.Kill()
	case chaos.WebhookRemoved:
		s.unregister()
	case chaos.WatchLost, chaos.VersionExpired:
		s.gate.Break(f)
	case chaos.BrokerKilled:
		s.broker.Kill()
	case chaos.OperatorCut:
		s.cable.Refuse()
	default:
		if err := s.path.Break(f); err != nil {
			s.t.Fatal(err)
		}
	}
}

// lose kills a replica for good. The one that was lost before is started again, so that one runs.
func (s *scene) lose(one *sender) {
	s.t.Helper()
	if s.lost != nil {
		s.lost.Launch()
	}

	s.lost = one
	if one.Running() {
		one.Kill()
	}
}

func (s *scene) end(f chaos.Fault) {
	s.t.Helper()
	switch f.Kind {
	case chaos.AgentKilled:
		if one := s.senders[f.Replica]; one != s.lost {
			one.Launch()
		}
	case chaos.ReplicaLost: // It stays so.
	case chaos.OperatorKilled:
		s.operator.Launch()
	case chaos.WebhookRemoved:
		s.register()
	case chaos.WatchLost, chaos.VersionExpired:
		s.must(s.gate.Mend())
	case chaos.BrokerKilled:
		s.broker.Launch()
	case chaos.OperatorCut:
		s.must(s.cable.Open())
	default:
		s.must(s.path.Mend())
	}
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
