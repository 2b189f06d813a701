package loss

import (
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// action is the beginning or the end of a fault.
type action struct {
	at    time.Duration
	fault Fault
	do    func(Fault)
}

// play makes the faults of a schedule, and returns when they are over and everything runs again,
// with the times of both.
func (s *scene) play(schedule Schedule) (began, ended time.Duration) {
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

func (s *scene) begin(f Fault) {
	s.t.Helper()
	switch f.Kind {
	case AgentKilled:
		if one := s.senders[f.Replica]; one.Running() {
			one.Kill()
		}
	case ReplicaLost:
		s.lose(s.senders[f.Replica])
	case OperatorKilled:
		s.operators[0].Kill()
	case LeaderKilled:
		s.killLeader()
	case WebhookRemoved:
		s.unregister()
	case WatchLost:
		s.loseWatch(f)
	case BrokerKilled:
		s.brokers[f.Strength%len(s.brokers)].Kill()
	case OperatorCut:
		s.cable.Refuse()
	default:
		lab.NoError(s.t, s.path.Break(f))
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

func (s *scene) end(f Fault) {
	s.t.Helper()
	switch f.Kind {
	case AgentKilled:
		if one := s.senders[f.Replica]; one != s.lost {
			one.Launch()
		}
	case ReplicaLost, LeaderKilled: // It is over.
	case OperatorKilled:
		s.operators[0].Launch()
	case WebhookRemoved:
		s.register()
	case WatchLost: // Frozen and held connections stay so, until the agents give them up.
		s.gate.Hold(false)
		lab.NoError(s.t, s.gate.Open())
	case BrokerKilled:
		s.brokers[f.Strength%len(s.brokers)].Launch()
	case OperatorCut:
		lab.NoError(s.t, s.cable.Open())
	default:
		lab.NoError(s.t, s.path.Mend())
	}
}
