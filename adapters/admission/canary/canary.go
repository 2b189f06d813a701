package canary

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Writer writes a nonce where the webhook sees it, and returns the warnings that the API server answered with. An error means that
// nothing was written. Write is called by one goroutine, blocks as long as the API server does, and ends with ctx.
type Writer interface {
	Write(ctx context.Context, nonce string) (warnings []string, err error)
}

// The defaults of [Options].
const (
	DefaultInterval = 30 * time.Second
	DefaultTimeout  = 5 * time.Second
)

// Options are the optional settings of a [Canary].
type Options struct {
	// Interval is the time between two writes. Default [DefaultInterval].
	Interval time.Duration
	// Timeout bounds a write. Default [DefaultTimeout].
	Timeout time.Duration
	// Recovered is called when the API server calls the agent again, or for the first time after it did not: what happened meanwhile
	// went by unseen.
	Recovered func()
	// Probed is called after each write with the state that it showed.
	Probed func(state core.CanaryState, took time.Duration)
	// Logger gets a line when the state or its error changes, and every 5 minutes while it is not
	// alive. Default: discarded.
	Logger *slog.Logger
}

// Canary finds out whether the API server calls the agent. Create one with [New].
type Canary struct {
	writer Writer
	opts   Options

	mu    sync.Mutex
	state core.CanaryState

	logged line // used by Start only
}

// New returns a canary that writes through writer while [Canary.Start] runs.
func New(writer Writer, opts Options) (*Canary, error) {
	if writer == nil {
		return nil, errors.New("canary: writer is nil, want one")
	}

	opts.Interval = cmp.Or(opts.Interval, DefaultInterval)
	opts.Timeout = cmp.Or(opts.Timeout, min(DefaultTimeout, opts.Interval))

	if opts.Interval < 0 || opts.Timeout < 0 || opts.Timeout > opts.Interval {
		return nil, fmt.Errorf("canary: interval is %v and timeout %v, want both above 0 and the timeout within the interval",
			opts.Interval, opts.Timeout)
	}

	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}

	return &Canary{writer: writer, opts: opts, state: core.CanaryOff}, nil
}

// State returns what the last write showed, [core.CanaryOff] before the first.
func (c *Canary) State() core.CanaryState {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.state
}

// Start writes at the interval until ctx ends, and then returns nil.
func (c *Canary) Start(ctx context.Context) error {
	ticker := time.NewTicker(c.opts.Interval)
	defer ticker.Stop()

	for ctx.Err() == nil {
		c.probe(ctx)

		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}

	return nil
}

// probe finds out how things are. One write that does not come back proves nothing yet: a second one decides.
func (c *Canary) probe(ctx context.Context) {
	state, took, err := c.write(ctx)
	if state != core.CanaryAlive && c.State() != state && ctx.Err() == nil {
		state, took, err = c.write(ctx)
	}

	if ctx.Err() != nil {
		return
	}

	if c.opts.Probed != nil {
		c.opts.Probed(state, took)
	}

	c.enter(state, err)
}

func (c *Canary) write(ctx context.Context) (state core.CanaryState, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()

	nonce := newNonce()
	started := time.Now()
	warnings, err := c.writer.Write(ctx, nonce)
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

// enter sets a state, logs it, and reports a recovery.
func (c *Canary) enter(state core.CanaryState, err error) {
	c.mu.Lock()
	before := c.state
	c.state = state
	c.mu.Unlock()

	if c.logged.isDue(before, state, err, time.Now()) {
		c.log(before, state, err)
	}

	if state == core.CanaryAlive && before != core.CanaryAlive && before != core.CanaryOff && c.opts.Recovered != nil {
		c.opts.Recovered()
	}
}

func (c *Canary) log(before, state core.CanaryState, err error) {
	switch {
	case state == core.CanaryAlive:
		c.opts.Logger.Info("the API server calls the agent", slog.String("before", string(before)))
	case state == core.CanaryLost && before == core.CanaryOff:
		// An agent is installed before its webhook configuration, so this is no error yet.
		c.opts.Logger.Info("the API server does not call the agent yet: " +
			"changes pass unseen until the webhook configuration is applied")
	case state == core.CanaryLost:
		c.opts.Logger.Error("the API server does not call the agent: changes pass unseen, " +
			"check the webhook configuration, its caBundle and the network policy")
	default:
		c.opts.Logger.Warn("the canary cannot write its Lease: it is unknown whether the API server calls the agent, "+
			"check the error, the Role and the token", slog.Any("error", err))
	}
}

// logEvery is the time after which a fault that lasts is logged again.
const logEvery = 5 * time.Minute

// line is the last log line.
type line struct {
	fault string // its error
	at    time.Time
}

// isDue reports whether a state is to be logged: when it or its error changed, and every logEvery
// while it is not alive.
func (l *line) isDue(before, state core.CanaryState, err error, now time.Time) bool {
	fault := fmt.Sprint(err)
	if before == state && fault == l.fault && (state == core.CanaryAlive || now.Sub(l.at) < logEvery) {
		return false
	}

	l.fault, l.at = fault, now

	return true
}

func newNonce() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // Never fails (crypto/rand).

	return hex.EncodeToString(random[:])
}
