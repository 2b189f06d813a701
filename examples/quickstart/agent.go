package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/lab"         //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// settle is the time for which the agent holds an event back, as it sees a write before the commit.
var settle = outbox.Defaults().Settle

// describeAgent waits until the agent is ready and, where the contract allows one, for its resync.
func (r *remote) describeAgent(ctx context.Context, pid int) (string, error) {
	if err := r.awaitAgent(ctx); err != nil {
		return "", err
	}
	text := fmt.Sprintf("in the runtime: process %d, speaks contract %s", pid, r.settings.contract)
	if r.settings.contract.NeedsOwner() {
		return text, nil // The first object names the owner, so there is no resync before it.
	}
	return text + ", requests a resync", r.awaitResync(ctx)
}

// awaitResync returns after the reconcile for the start of the agent: earlier changes are unknown.
func (r *remote) awaitResync(ctx context.Context) error {
	return r.journal.await(ctx, "the resync at the start of the agent, and its reconcile", func() bool {
		resyncs := slices.ContainsFunc(r.journal.deliveries, func(d core.Delivery) bool {
			return d.Event.Resync && string(d.Runtime) == r.name
		})
		return resyncs && len(r.journal.reconciles) > len(registered())
	})
}

// awaitAgent returns when the agent is ready.
func (r *remote) awaitAgent(ctx context.Context) (err error) {
	ready := func() bool {
		_, err = lab.Get(ctx, "http://"+r.agent.metrics+"/readyz")
		return err == nil
	}
	if poll(ctx, ready) != nil {
		return fmt.Errorf("the agent is not ready: %w", err)
	}
	return nil
}

// poll waits until done returns true. It fails after patience, and when ctx ends.
func poll(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return machine.Poll(ctx, done)
}

// events returns the fates of events from the metrics of the agent, by the end of the name.
func (a *agent) events(ctx context.Context) (map[string]float64, error) {
	text, err := lab.Get(ctx, "http://"+a.metrics+"/metrics")
	counts := make(map[string]float64)
	for _, fate := range []string{"accepted_total", "delivered_total", "coalesced_total", "dropped_total", "pending"} {
		counts[fate] = lab.Sum(text, "runtime_watcher_agent_events_"+fate)
	}
	return counts, err
}

// readLog takes a decision from a line of the agent's log.
func (r *remote) readLog(line []byte) {
	var record struct {
		Msg      string `json:"msg"`
		Decision string `json:"decision"`
	}
	// Other texts, such as a panic, are in the file.
	if json.Unmarshal(line, &record) == nil && record.Msg == "reviewed" {
		r.journal.decided(record.Decision)
	}
}

// lines copies its input to a file, and passes on each line.
type lines struct {
	file io.Writer
	each func(line []byte)
	rest []byte
}

// Write implements [io.Writer].
func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.each(line)
		l.rest = rest
	}
	return l.file.Write(text)
}
