package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// component is a part of the agent. start blocks until ctx has ended and the part has stopped. The
// part has its own deadline for that.
type component struct {
	name  string
	start func(ctx context.Context) error
}

var errEnded = errors.New("ended unexpectedly")

// runAll starts components in their order. When ctx ends, or one of them fails, it stops them one
// by one in reverse order. So each has the parts that it needs. runAll returns their errors.
func runAll(ctx context.Context, components []component) error {
	ended := make(chan struct{}, len(components))
	var stops []func() error
	for _, c := range components {
		stops = append(stops, c.runInBackground(ctx, ended))
	}

	select {
	case <-ctx.Done():
	case <-ended:
	}

	var err error
	for _, stop := range slices.Backward(stops) {
		err = errors.Join(stop(), err)
	}
	return err
}

// runInBackground starts a component. The caller must call stop, which returns after the component
// has ended.
func (c component) runInBackground(ctx context.Context, ended chan<- struct{}) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	result := make(chan error, 1)
	go func() {
		result <- c.startUntil(ctx)
		ended <- struct{}{}
	}()
	return func() error {
		cancel()
		return <-result
	}
}

// startUntil runs a component, which must not end before ctx does.
func (c component) startUntil(ctx context.Context) error {
	err := c.start(ctx)
	if err == nil && ctx.Err() == nil {
		err = errEnded
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
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
