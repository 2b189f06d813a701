package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// component is a part of the agent. start blocks until ctx has ended and the part has stopped. The
// part has its own deadline for that.
type component struct {
	name  string
	start func(ctx context.Context) error
}

var errEnded = errors.New("ended by itself")

// runAll starts components in their order. When ctx ends, or one of them fails, it stops them one
// by one in reverse order. So each has the parts that it needs. runAll returns their errors.
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

type running struct {
	cancel context.CancelFunc
	result chan error
}

func (c component) run(ctx context.Context, ended chan<- struct{}) *running {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, result: make(chan error, 1)}
	go func() {
		err := c.start(ctx)
		if err == nil && ctx.Err() == nil {
			err = errEnded
		}
		r.result <- option.Unless(err == nil, "%s: %w", c.name, err)
		ended <- struct{}{}
	}()
	return r
}

func (r *running) stop() error {
	r.cancel()
	return <-r.result
}

func closer(name string, closeIt func() error) component {
	return component{name, func(ctx context.Context) error {
		<-ctx.Done()
		if err := closeIt(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	}}
}
