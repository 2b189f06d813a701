package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// line is a delivery as it is printed.
type line struct {
	Received   time.Time      `json:"received"`
	Runtime    core.RuntimeID `json:"runtime"`
	Manager    core.Manager   `json:"manager"`
	Event      string         `json:"event"`
	APIVersion string         `json:"apiVersion,omitempty"`
	Kind       string         `json:"kind,omitempty"`
	Namespace  string         `json:"namespace,omitempty"`
	Name       string         `json:"name,omitempty"`
	Owner      string         `json:"owner,omitempty"`
}

// newPrinter returns a handler that prints each delivery. One that can not be printed is not acknowledged, so that the runtime sends it again.
func newPrinter(out io.Writer) core.Handler {
	var mu sync.Mutex

	lines := json.NewEncoder(out)

	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()

		if err := lines.Encode(newLine(d)); err != nil {
			return fmt.Errorf("print delivery: %w", err)
		}

		return nil
	})
}

func newLine(d core.Delivery) line {
	l := line{
		Received:  d.Received.UTC(),
		Runtime:   d.Runtime,
		Manager:   d.Manager,
		Event:     d.Event.KindWord(),
		Kind:      d.Event.WatchedGVK.Kind,
		Namespace: d.Event.Watched.Namespace,
		Name:      d.Event.Watched.Name,
	}

	if !d.Event.WatchedGVK.Empty() {
		l.APIVersion = d.Event.WatchedGVK.GroupVersion().String()
	}

	if d.Event.Owner.Name != "" {
		l.Owner = d.Event.Owner.String()
	}

	return l
}
