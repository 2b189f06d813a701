package main

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// toChannel is for an operator that reads events from a channel today, with source.Channel. It stands
// in the place of a Source, as a handler of listener.New. Compared with a Source, an event is
// acknowledged before it is in the workqueue: if the operator dies in between, the change is lost until
// the next resync. Equal events do not collapse while the channel is full, and the sender waits. The
// freshness of a runtime requests nothing, and a replica that does not lead takes events, too.
func toChannel(events chan<- event.GenericEvent) core.HandlerFunc {
	return func(ctx context.Context, d core.Delivery) error {
		kyma := &metav1.PartialObjectMetadata{}
		kyma.SetNamespace("kcp-system")
		kyma.SetName(string(d.Runtime))
		select {
		case events <- event.GenericEvent{Object: kyma}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestToChannel(t *testing.T) {
	events := make(chan event.GenericEvent, 1)
	handler, delivery := toChannel(events), core.Delivery{Runtime: "runtime-1"}
	if err := handler.Handle(t.Context(), delivery); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := handler.Handle(ctx, delivery); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a full channel, want the event refused", err)
	}
	if received := <-events; received.Object.GetName() != "runtime-1" {
		t.Errorf("received %v", received.Object)
	}
}
