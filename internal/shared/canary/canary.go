package canary

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// Write writes a nonce to an object that the webhook watches, and returns the answer of the API
// server. An error means that nothing was written, with one exception: it may also name one of
// several API servers, which accepted the write and calls no agent.
//
// It is called by one goroutine. It may block until ctx ends.
type Write = func(ctx context.Context, nonce string) (Answer, error)

// Answer is the answer of an API server to a write.
type Answer struct {
	// Warnings are the texts of the Warning headers of the answer.
	Warnings []string
	// Version is the resourceVersion of the written object, empty if it is not known.
	Version string
}

// uncalled means that one of several API servers accepted a write and called no agent.
type uncalled struct{ server string }

func (u *uncalled) Error() string { return "the API server " + u.server + " does not call the agent" }

// writeTimeout bounds one write, and no write takes longer than the interval.
const writeTimeout = 5 * time.Second

// Options are the optional settings of a [Canary]. The zero value is the documented default.
type Options struct {
	// Interval is the time between two writes. Default: 30 s.
	Interval time.Duration
	// Recovered is called when a write succeeds after a write that did not. Other changes may have
	// been missed as well, so the caller should accept a resync. It must not block. Default: none.
	Recovered func()
	// Restored is called when the resourceVersion of a write is lower than the resourceVersion of
	// the write before, or higher by 100,000,000 or more. In this case, the API server was restored
	// from a backup, and called no webhook for the changes of the restore. The caller should accept
	// a resync. It must not block. Default: none.
	Restored func()
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
		Restored:  func() {},
		Probed:    func(hook.CanaryProbe) {},
		Logger:    slog.New(slog.DiscardHandler),
	})
}

// Canary finds out whether the API server calls the agent. Create one with [New]. It is safe for
// concurrent use.
type Canary struct {
	write Write
	opts  Options
	// found is the result of the last probe.
	found atomic.Pointer[result]

	// Only Start uses the following fields.
	started  time.Time
	called   bool   // The API server has called the agent once.
	early    bool   // A write was lost earlier, when a lost write was no fault yet.
	missed   bool   // The first write of the last probe was lost.
	version  uint64 // The version of the last write, 0 if it is not known.
	loggedAt time.Time
}

// result is the result of one probe.
type result struct {
	state core.CanaryState
	fault string // the error of the write, empty if it was written
}

// New returns a canary that calls write while [Canary.Start] runs. It fails if an option is
// invalid.
func New(write Write, opts Options) (*Canary, error) {
	if err := option.NotNegative("Interval", opts.Interval); err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}

	c := &Canary{write: write, opts: opts.withDefaults()}
	c.found.Store(&result{state: core.CanaryOff})
	return c, nil
}

// State returns the result of the last probe, and [core.CanaryOff] before the first probe. An agent
// is installed before its webhook configuration. Therefore, for one interval after the start, the
// state stays [core.CanaryOff] if the API server does not call the agent.
func (c *Canary) State() core.CanaryState { return c.found.Load().state }

// Problem returns why the write of the last probe failed, or which of several API servers calls no
// agent. It returns "" if the write succeeded and every API server called an agent.
func (c *Canary) Problem() string { return c.found.Load().fault }

// Start probes at the interval until ctx ends, and then returns nil. It must be called once.
func (c *Canary) Start(ctx context.Context) error {
	c.started = time.Now()
	c.probe(ctx)
	c.awaitFirstCall(ctx)
	periodic.Call(ctx, c.opts.Interval, func() { c.probe(ctx) })

	return nil
}

const (
	// eagerInterval and eagerFor apply after the start, because a webhook configuration may be
	// applied later.
	eagerInterval = 2 * time.Second
	eagerFor      = 10 * time.Minute
)

// awaitFirstCall probes more often until the API server has called the agent once, or for eagerFor.
func (c *Canary) awaitFirstCall(ctx context.Context) {
	for !c.called && time.Since(c.started) < eagerFor && ctx.Err() == nil {
		periodic.Pause(ctx, min(eagerInterval, c.opts.Interval))
		c.probe(ctx)
	}
}

// probe writes once, and again if the first write shows a new problem: one failure proves nothing.
// A first write that is lost again and again means that one of several API servers calls no agent.
func (c *Canary) probe(ctx context.Context) {
	state, took, err := c.attemptWrite(ctx)
	missed := state == core.CanaryLost
	if state != core.CanaryAlive && c.State() != state && ctx.Err() == nil {
		state, took, err = c.attemptWrite(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if missed && c.missed && state != core.CanaryLost {
		state = core.CanaryLost
		err = nil
	}

	c.missed = missed
	c.opts.Probed(hook.CanaryProbe{State: state, Took: took})
	c.setState(state, err)
}

// attemptWrite writes a new nonce, and compares the version of the object with the version before.
func (c *Canary) attemptWrite(ctx context.Context) (state core.CanaryState, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(writeTimeout, c.opts.Interval))
	defer cancel()

	nonce := newNonce()
	started := time.Now()
	answer, err := c.write(ctx, nonce)
	took = time.Since(started)

	_, isUncalled := errors.AsType[*uncalled](err)
	if err == nil || isUncalled {
		c.noteVersion(answer.Version)
	}

	switch {
	case isUncalled:
		return core.CanaryLost, took, err
	case err != nil:
		return core.CanaryFailing, took, err
	case slices.Contains(answer.Warnings, warningPrefix+nonce):
		return core.CanaryAlive, took, nil
	default:
		return core.CanaryLost, took, nil
	}
}

// mostWrites is more than an etcd can accept between two writes of a canary. A restore that is to
// end the watches of clients raises the versions by 1,000,000,000, as the documentation of etcd
// does.
const mostWrites = 100_000_000

// ofClock is higher than any version of an etcd. Some managed control planes have another store.
// Their versions are times in nanoseconds, which rise by more than mostWrites between any two
// writes.
const ofClock = 1_000_000_000_000_000

// noteVersion compares the versions of two writes. Each write of one store gets a higher version. A
// version that is not a number is ignored.
func (c *Canary) noteVersion(text string) {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return
	}

	before := c.version
	c.version = version
	isCount := before > 0 && version < ofClock
	isRaised := isCount && version > before && version-before >= mostWrites
	if version < before || isRaised {
		c.opts.Logger.Warn(
			"the versions of the API server went back or far ahead, as after a restored backup: a resync is requested",
			slog.Uint64("version", version), slog.Uint64("before", before))
		c.opts.Restored()
	}
}

const logEvery = 5 * time.Minute

// setState logs a new state or error, and logs again every logEvery while the canary is not alive.
func (c *Canary) setState(state core.CanaryState, err error) {
	if state == core.CanaryLost && !c.called && time.Since(c.started) < c.opts.Interval {
		c.early = true
		return
	}

	c.called = c.called || state == core.CanaryAlive

	now := result{state: state}
	if err != nil {
		now.fault = err.Error()
	}

	former := *c.found.Swap(&now)
	before := former.state

	isDue := state != core.CanaryAlive && time.Since(c.loggedAt) >= logEvery
	if now != former || isDue {
		c.loggedAt = time.Now()
		c.logState(before, state, err)
	}

	if state != core.CanaryAlive {
		return
	}

	missed := c.missed || c.early
	c.early = false

	wasLost := before != core.CanaryAlive && before != core.CanaryOff
	if missed || wasLost {
		c.opts.Recovered()
	}
}

func (c *Canary) logState(before, state core.CanaryState, err error) {
	var problem []any
	if err != nil {
		problem = append(problem, slog.Any("error", err))
	}

	switch {
	case state == core.CanaryAlive:
		c.opts.Logger.Info("the API server calls the agent", slog.String("before", string(before)))
	case state == core.CanaryLost && before == core.CanaryOff:
		// An agent is installed before its webhook configuration, so this is not an error yet.
		c.opts.Logger.Info("the API server does not call the agent yet, "+
			"changes are missed until the webhook configuration is applied", problem...)
	case state == core.CanaryLost:
		c.opts.Logger.Error("the API server does not call the agent, so changes are missed: "+
			"check the webhook configuration, its caBundle and the network policy", problem...)
	default:
		c.opts.Logger.Warn("the canary cannot write its Lease, so it is unknown whether "+
			"the API server calls the agent: check the error, the Role and the token", problem...)
	}
}

func newNonce() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // Never fails (crypto/rand).
	return hex.EncodeToString(random[:])
}
