package listener

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

var errNoVerifier = forbidden("no_verifier", "want at least one verifier")

// AllOf lets an event pass if every verifier does, and otherwise returns the first error. Without
// verifiers it refuses every event.
func AllOf(verifiers ...core.Verifier) core.Verifier {
	return &combined{slices.Clone(verifiers), allOf, false}
}

func allOf(ctx context.Context, verifiers []core.Verifier, peer core.Peer, event *core.WatchEvent) error {
	if len(verifiers) == 0 {
		return errNoVerifier
	}

	for _, verifier := range verifiers {
		if err := verifier.Verify(ctx, peer, event); err != nil {
			return err
		}
	}
	return nil
}

// AnyOf lets an event pass if one verifier does. Otherwise it returns the first error that is not a
// refusal, because that verifier may pass the event later, or else the first refusal. Without
// verifiers it refuses every event.
func AnyOf(verifiers ...core.Verifier) core.Verifier {
	return &combined{slices.Clone(verifiers), anyOf, false}
}

func anyOf(ctx context.Context, verifiers []core.Verifier, peer core.Peer, event *core.WatchEvent) error {
	var unknown, refused error
	for _, verifier := range verifiers {
		err := verifier.Verify(ctx, peer, event)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, core.ErrForbidden), errors.Is(err, core.ErrUnauthenticated):
			refused = cmp.Or(refused, err)
		default:
			unknown = cmp.Or(unknown, err)
		}
	}
	return cmp.Or(unknown, refused, errNoVerifier)
}

var (
	_ core.RequestVerifier = (*combined)(nil)
	_ core.Validator       = (*combined)(nil)
	_ core.RequestVerifier = (*sanPinning)(nil)
	_ core.Validator       = (*sanPinning)(nil)
)

// combined is a verifier that calls others. It keeps their methods Validate and ForRequest.
type combined struct {
	verifiers []core.Verifier
	verify    func(context.Context, []core.Verifier, core.Peer, *core.WatchEvent) error
	// observeOnly means that it was made by ObserveOnly.
	observeOnly bool
}

func (c *combined) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	return c.verify(ctx, c.verifiers, peer, event)
}

func (c *combined) Validate() error {
	var invalid []error
	for _, verifier := range c.verifiers {
		invalid = append(invalid, option.Verifier(verifier))
	}
	return errors.Join(invalid...)
}

func (c *combined) ForRequest() core.Verifier {
	all := make([]core.Verifier, len(c.verifiers))
	for i, verifier := range c.verifiers {
		all[i] = intake.ForRequest(verifier)
	}
	return &combined{all, c.verify, c.observeOnly}
}

// InsecureAllowAll lets every event of every identified peer pass: each runtime can send events for
// every other runtime.
func InsecureAllowAll() core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
}

// ObserveOnly lets each event pass. Use it in a fleet that gets a verifier for the first time. For
// each runtime and reason that verifier would refuse, logger gets a line at warn, which repeats
// every minute while the verifier would still refuse. A nil logger discards. As the verifier of a
// listener, ObserveOnly also passes the reason to Hooks.Answered. The sender must still prove its
// identity. Until verifier replaces ObserveOnly, a runtime can send events for other runtimes, as
// with [InsecureAllowAll].
func ObserveOnly(verifier core.Verifier, logger *slog.Logger) core.Verifier {
	log := newObservedLog(logger)
	observe := func(ctx context.Context, only []core.Verifier, peer core.Peer, event *core.WatchEvent) error {
		if err := only[0].Verify(ctx, peer, event); err != nil {
			log.logTaken(ctx, peer.ID, err)
		}
		return nil
	}
	return &combined{[]core.Verifier{verifier}, observe, true}
}

type observedLog struct{ log *slog.Logger }

func newObservedLog(logger *slog.Logger) observedLog {
	return observedLog{pacedlog.New(logger, time.Minute, "runtime", "reason")}
}

func (o observedLog) logTaken(ctx context.Context, runtime core.RuntimeID, err error) {
	if seen, ok := ctx.Value(observedKey{}).(*observed); ok && seen.reason == "" {
		seen.reason = core.ReasonOf(err)
	}
	o.log.WarnContext(ctx, "accepted an event that would be refused without ObserveOnly",
		slog.String("runtime", string(runtime)), slog.String("reason", string(core.ReasonOf(err))),
		slog.Any("error", err))
}

// observed contains the first reason to refuse a request. It needs no lock, because one goroutine
// answers the request.
type observed struct{ reason core.Reason }

type observedKey struct{}

func observedIn(r *http.Request) core.Reason {
	if seen, ok := r.Context().Value(observedKey{}).(*observed); ok {
		return seen.reason
	}
	return ""
}
