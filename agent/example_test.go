package agent_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// clock is a change source: it reports an object that changed at midnight.
func clock(ctx context.Context, inbox *agent.Inbox) error {
	inbox.Proved("widgets")
	inbox.Accept("widgets", core.WatchEvent{
		Watched: types.NamespacedName{Namespace: "default", Name: "midnight"}, Time: time.Now(),
	})
	<-ctx.Done()

	return nil
}

// printer is a transport. It stops the agent when it is closed.
type printer struct{ stop context.CancelFunc }

// Forward prints the events of a batch and the proof in its heartbeat.
func (p printer) Forward(_ context.Context, manager core.Manager, batch core.Batch) error {
	for _, event := range batch.Events {
		if !event.Resync { // The agent requests one at start.
			fmt.Printf("%s: look at %s\n", manager, event.Watched)
			p.stop()
		}
	}

	if beat := batch.Heartbeat; beat != nil && beat.Leaving {
		fmt.Printf("%s: leaving, proved %t, pending %d\n", manager, !beat.LastReview.IsZero(), beat.Pending)
	}

	return nil
}

// Close is called after the last batch.
func (printer) Close() error {
	fmt.Println("closed")
	return nil
}

// A program with another change source and another transport has the same heartbeats, metrics,
// health and shutdown as the agent.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	running, err := agent.New(ctx, agent.Connection{}, agent.Parts{Source: clock, Transport: printer{stop}}, agent.Options{
		Managers:       []core.Manager{"widgets"},
		MetricsAddress: "127.0.0.1:0",
		Outbox:         agent.Outbox{Settle: -1, Resend: []time.Duration{}, ResendResync: -1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println("ended:", running.Start(ctx))
	// Output:
	// widgets: look at default/midnight
	// widgets: leaving, proved true, pending 0
	// closed
	// ended: <nil>
}
