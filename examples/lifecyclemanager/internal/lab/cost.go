package lab

import "context"

// LeaderPid returns that of the replica that leads.
func (l *Lab) LeaderPid(ctx context.Context) (int, error) {
	leader, err := l.service.leader(ctx)
	if err != nil {
		return 0, err
	}
	return leader.Pid(), nil
}

// Reconfigure starts the operator again, with more arguments. The last value of a flag wins.
func (l *Lab) Reconfigure(ctx context.Context, args ...string) error {
	l.KillOperator()
	for _, o := range l.replicas {
		o.args = append(o.args, args...)
	}
	return l.StartOperator(ctx)
}
