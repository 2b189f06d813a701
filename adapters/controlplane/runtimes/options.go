package runtimes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/installation"
)

// The defaults of [Options].
const (
	DefaultInterval   = 10 * time.Minute
	DefaultRetry      = 3 * time.Second
	DefaultTimeout    = time.Minute
	DefaultGiveUp     = time.Hour
	DefaultConcurrent = 10
)

// Options are what is optional of [SetUp]. The zero value is ready to use.
type Options struct {
	// Name of the controller in logs and metrics. Default: "runtimes".
	Name string
	// Interval is the time between two looks at a runtime that is ready: drift is corrected, and a new certificate arrives there. Each is up
	// to a tenth longer, at random. Default: [DefaultInterval].
	Interval time.Duration
	// Retry is the time between two looks at one that is not. Default: [DefaultRetry].
	Retry time.Duration
	// Timeout is how long one reconcile may be busy with a runtime, so that one that hangs holds up no other for long. What is told of it in the
	// control plane may take as long again. Default: [DefaultTimeout].
	Timeout time.Duration
	// GiveUp is how long after its deletion an object is held when its runtime can not be reached. After that its
	// certificate is removed and it is let go, and what is left in the runtime stays there. Default: [DefaultGiveUp].
	GiveUp time.Duration
	// Concurrent is how many runtimes are reconciled at the same time. Default: [DefaultConcurrent].
	Concurrent int
	// Fleet is that of the listener in this process. It is made to forget a runtime that was removed, and the managers that no Watcher names any
	// more, once no agent is heard for them. Managers that no Watcher has named, as far as this process knows, stay. Default: none.
	Fleet Fleet
	// Report gets to know how far a runtime is, after each reconcile that knows: to write a condition, say. It may be called concurrently. An
	// error is tried again. Default: none.
	Report func(ctx context.Context, object client.Object, status installation.Status) error
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "runtimes")
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Retry = cmp.Or(o.Retry, DefaultRetry)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.GiveUp = cmp.Or(o.GiveUp, DefaultGiveUp)
	o.Concurrent = cmp.Or(o.Concurrent, DefaultConcurrent)

	if o.Fleet == nil {
		o.Fleet = noFleet{}
	}

	if o.Report == nil {
		o.Report = func(context.Context, client.Object, installation.Status) error { return nil }
	}

	return o
}

func (o Options) validate() error {
	var wrong []error

	for _, option := range []struct {
		name  string
		value time.Duration
	}{{"Interval", o.Interval}, {"Retry", o.Retry}, {"Timeout", o.Timeout}, {"GiveUp", o.GiveUp}} {
		if option.value < 0 {
			wrong = append(wrong, fmt.Errorf("%s: want more than 0, have %v", option.name, option.value))
		}
	}

	if o.Concurrent < 0 {
		wrong = append(wrong, fmt.Errorf("Concurrent: want more than 0, have %d", o.Concurrent))
	}

	return errors.Join(wrong...)
}
