package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Cost is the work of an operator since it has started.
type Cost struct {
	// Requests are those to the API servers of all runtimes.
	Requests int
	// Reconciles are those of all controllers and causes.
	Reconciles int
	// Processor is the processor time of the replica that leads.
	Processor time.Duration
}

// Cost returns the cost so far.
func (l *Lab) Cost(ctx context.Context) (c Cost, err error) {
	text, err := l.Metrics(ctx)
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		count, _ := strconv.ParseFloat(value, 64) // Other lines are not of these metrics.
		switch {
		case strings.HasPrefix(name, "lifecycle_manager_reconciles_total{"):
			c.Reconciles += int(count)
		case strings.HasPrefix(name, "rest_client_requests_total{") && l.isRuntime(name):
			c.Requests += int(count)
		}
	}
	c.Processor, err = l.processor(ctx)
	return c, err
}

// isRuntime reports whether a metric names the API server of a runtime.
func (l *Lab) isRuntime(metric string) bool {
	for _, r := range l.Runtimes {
		if strings.Contains(metric, `host="`+r.Address+`"`) {
			return true
		}
	}
	return false
}

// processor returns the processor time of the replica that leads.
func (l *Lab) processor(ctx context.Context) (time.Duration, error) {
	leader, err := l.service.leader(ctx)
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", leader.Pid()))
	if err != nil {
		return 0, err
	}
	const user, system, tick = 11, 12, 10 * time.Millisecond // After the name: proc(5), and USER_HZ.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	first, firstErr := strconv.Atoi(fields[user])
	second, secondErr := strconv.Atoi(fields[system])
	return time.Duration(first+second) * tick, errors.Join(firstErr, secondErr)
}

// Reconfigure starts the operator again, with more arguments. The last value of a flag wins.
func (l *Lab) Reconfigure(ctx context.Context, args ...string) error {
	l.KillOperator()
	for _, o := range l.replicas {
		o.args = append(o.args, args...)
	}
	return l.StartOperator(ctx)
}
