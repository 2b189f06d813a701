package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// source is a change source: it reads a watch of the Kubernetes API and offers the changes that
// matter. A watch sees a write after its commit.
type source struct {
	manager core.Manager
	filter  core.Filter
	outbox  core.Acceptor
	// known contains the last state of each object, for the comparison.
	known map[core.EventKey]*core.Object
}

func newSource(manager core.Manager, outbox core.Acceptor) *source {
	return &source{manager: manager, filter: core.Changed, outbox: outbox, known: map[core.EventKey]*core.Object{}}
}

// watched is one line of `kubectl get --watch --output-watch-events --output json`, as of
// metav1.WatchEvent.
type watched struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// readChanges offers all changes of a watch until it ends.
func (s *source) readChanges(watch io.Reader) error {
	lines := json.NewDecoder(watch)
	for {
		var line watched
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}

		if err := s.observe(line); err != nil {
			return err
		}
	}
}

// observe offers the change that leads from the last state of an object to the one in the line.
func (s *source) observe(line watched) error {
	state, err := core.DecodeObject(line.Object)
	if err != nil {
		return err
	}

	key := core.EventKey{Watched: state.Name, WatchedGVK: state.GVK}
	change := core.Change{Operation: core.OperationUpdate, Old: s.known[key], New: state}
	switch line.Type {
	case "ADDED":
		change.Operation = core.OperationCreate
	case "MODIFIED":
	case "DELETED":
		change = core.Change{Operation: core.OperationDelete, Old: state}
	default: // After an ERROR, changes may be missed until a new watch begins.
		return fmt.Errorf("the watch ended with %s: %s", line.Type, line.Object)
	}

	s.known[key] = change.New
	if change.New == nil {
		delete(s.known, key)
	}

	return s.offer(&change)
}

// offer never waits: an outbox takes the event, and delivers it later.
func (s *source) offer(change *core.Change) error {
	if !s.filter(change) {
		return nil
	}

	event, err := change.Event(time.Now())
	if err != nil {
		return err
	}

	s.outbox.Accept(s.manager, event)
	return nil
}
