package main

import (
	"context"
	"errors"
	"fmt"
)

// component is a part of the agent. Its start blocks until ctx ends and the part has stopped, for which it has a deadline of
// its own.
type component struct {
	name  string
	start func(ctx context.Context) error
}

var errEnded = errors.New("ended by itself")

// runAll starts components in their order. When ctx ends, or one of them fails, it stops them one after the other in
// reverse order, so that each has what it needs until its end. It returns what went wrong.
func runAll(ctx context.Context, components []component) error {
	ended := make(chan struct{}, len(components))
	parts := make([]*running, 0, len(components))

	for _, c := range components {
		parts = append(parts, c.run(ctx, ended))
	}

	select {
	case <-ctx.Done():
	case <-ended:
	}

	errs := make([]error, len(parts))
	for i := len(parts) - 1; i >= 0; i-- {
		errs[i] = parts[i].stop()
	}

	return errors.Join(errs...)
}

// running is a component that was started.
type running struct {
	cancel context.CancelFunc
	result chan error
}

// run starts c with a context that ends for c only.
func (c component) run(ctx context.Context, ended chan<- struct{}) *running {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, result: make(chan error, 1)}

	go func() {
		err := c.start(ctx)
		if err == nil && ctx.Err() == nil {
			err = errEnded
		}

		r.result <- prefix(c.name, err)
		ended <- struct{}{}
	}()

	return r
}

func (r *running) stop() error {
	r.cancel()

	return <-r.result
}

// closer is a component that only has to be closed at its end.
func closer(name string, closeIt func() error) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()

		if err := closeIt(); err != nil {
			return fmt.Errorf("close: %w", err)
		}

		return nil
	}}
}
