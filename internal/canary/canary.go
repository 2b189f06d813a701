package canary

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// Write writes a nonce to an object that the webhook watches. It returns the warnings in the answer
// of the API server. An error means that nothing was written.
//
// It is called by one goroutine. It may block until ctx ends.
type Write = func(ctx context.Context, nonce string) (warnings []string, err error)

// writeTimeout bounds one write, and no write takes longer than the interval.
const writeTimeout = 5 * time.Second

// Options are the optional settings of a [Canary]. The zero value is the documented default.
type Options struct {
	// Interval is the time between two writes. Default: 30 s.
	Interval time.Duration
	// Recovered is called when a write succeeds after one that did not. Changes beside that one
	// were missed, so the caller should accept a resync. It must not block. Default: none.
	Recovered func()
	// Probed is called after each probe with the state and the duration of its last write. It must
	// not block. Default: none.
	Probed func(hook.CanaryProbe)
	// Logger gets a line when the state or its error changes, and every 5 minutes while it is not
	// alive. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	return option.WithDefaults(o, Options{
		Interval:  defaults.CanaryInterval,
		Recovered: func() {},
		Probed:    func(hook.CanaryProbe) {},
		Logger:    slog.New(slog.DiscardHandler),
	})
}

// Canary finds out whether the API server calls the agent. Create one with [New]. It is safe for
// concurrent use.
type Canary struct {
	write Write
	opts  Options
	state atomic.Pointer[core.CanaryState]

	// Only Start uses these.
	missed   bool   // the first write of the last probe was lost
	fault    string // its error
	loggedAt time.Time
}

// New returns a canary that calls write while [Canary.Start] runs. It fails if an option is
// invalid.
func New(write Write, opts Options) (*Canary, error) {
	if err := option.NotNegative("Interval", opts.Interval); err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}
	c := &Canary{write: write, opts: opts.withDefaults()}
	c.state.Store(new(core.CanaryOff))
	return c, nil
}

// State returns the result of the last probe, and [core.CanaryOff] before the first one.
func (c *Canary) State() core.CanaryState { return *c.state.Load() }

// Start probes at the interval until ctx ends, and then returns nil. It must be called once.
func (c *Canary) Start(ctx context.Context) error {
	c.probe(ctx)
	periodic.Call(ctx, c.opts.Interval, func() { c.probe(ctx) })
	return nil
}

// probe writes once, and again if the first write shows a new problem: one failure proves nothing.
// A first write that is lost again and again means that one of several API servers calls no agent.
func (c *Canary) probe(ctx context.Context) {
	state, took, err := c.attempt(ctx)
	missed := state == core.CanaryLost
	if state != core.CanaryAlive && c.State() != state && ctx.Err() == nil {
		state, took, err = c.attempt(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if missed && c.missed {
		state, err = core.CanaryLost, nil
	}
	c.missed = missed
	c.opts.Probed(hook.CanaryProbe{State: state, Took: took})
	c.enter(state, err)
}

func (c *Canary) attempt(ctx context.Context) (state core.CanaryState, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(writeTimeout, c.opts.Interval))
	defer cancel()
	nonce := newNonce()
	started := time.Now()
	warnings, err := c.write(ctx, nonce)
	took = time.Since(started)
	switch {
	case err != nil:
		return core.CanaryFailing, took, err
	case slices.Contains(warnings, warningPrefix+nonce):
		return core.CanaryAlive, took, nil
	default:
		return core.CanaryLost, took, nil
	}
}

const logEvery = 5 * time.Minute

// enter logs a new state or error, and every logEvery while it is not alive.
func (c *Canary) enter(state core.CanaryState, err error) {
	before, fault := *c.state.Swap(&state), fmt.Sprint(err)
	isNew := before != state || fault != c.fault
	if isNew || state != core.CanaryAlive && time.Since(c.loggedAt) >= logEvery {
		c.fault, c.loggedAt = fault, time.Now()
		c.log(before, state, err)
	}
	if state == core.CanaryAlive && (c.missed || before != core.CanaryAlive && before != core.CanaryOff) {
		c.opts.Recovered()
	}
}

func (c *Canary) log(before, state core.CanaryState, err error) {
	switch {
	case state == core.CanaryAlive:
		c.opts.Logger.Info("the API server calls the agent", slog.String("before", string(before)))
	case state == core.CanaryLost && before == core.CanaryOff:
		// An agent is installed before its webhook configuration, so this is no error yet.
		c.opts.Logger.Info("the API server does not call the agent yet, " +
			"changes are missed until the webhook configuration is applied")
	case state == core.CanaryLost:
		c.opts.Logger.Error("the API server does not call the agent, changes are missed: " +
			"check the webhook configuration, its caBundle and the network policy")
	default:
		c.opts.Logger.Warn("the canary cannot write its Lease: it is unknown whether the API server calls the agent, "+
			"check the error, the Role and the token", slog.Any("error", err))
	}
}

func newNonce() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // Never fails (crypto/rand).
	return hex.EncodeToString(random[:])
}
