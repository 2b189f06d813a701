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

var errNoVerifier = Forbidden("no_verifier", "want at least one verifier")

// AllOf lets an event pass if every verifier does, and otherwise returns the first error. Without
// verifiers it refuses every event.
func AllOf(verifiers ...core.Verifier) core.Verifier { return allOf(slices.Clone(verifiers)) }

type allOf []core.Verifier

func (all allOf) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if len(all) == 0 {
		return errNoVerifier
	}
	for _, verifier := range all {
		if err := verifier.Verify(ctx, peer, event); err != nil {
			return err
		}
	}
	return nil
}

func (all allOf) Validate() error { return validateAll(all) }

func (all allOf) ForRequest() core.Verifier { return allOf(allForRequest(all)) }

// AnyOf lets an event pass if one verifier does. Otherwise it returns the first error that is no
// refusal, as the answer may become a pass, or else the first refusal. Without verifiers it refuses
// every event.
func AnyOf(verifiers ...core.Verifier) core.Verifier { return anyOf(slices.Clone(verifiers)) }

type anyOf []core.Verifier

func (one anyOf) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	var unknown, refused error
	for _, verifier := range one {
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

func (one anyOf) Validate() error { return validateAll(one) }

func (one anyOf) ForRequest() core.Verifier { return anyOf(allForRequest(one)) }

func allForRequest(verifiers []core.Verifier) []core.Verifier {
	all := make([]core.Verifier, len(verifiers))
	for i, verifier := range verifiers {
		all[i] = intake.ForRequest(verifier)
	}
	return all
}

func validateAll(verifiers []core.Verifier) error {
	var invalid []error
	for _, verifier := range verifiers {
		invalid = append(invalid, option.Verifier(verifier))
	}
	return errors.Join(invalid...)
}

// InsecureAllowAll lets every event of every identified peer pass: each runtime can trigger all
// others.
func InsecureAllowAll() core.Verifier {
	return core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error { return nil })
}

// ObserveOnly lets each event pass. It is for a fleet that gets a verifier for the first time. For
// each runtime and reason that verifier would refuse, logger gets a line at warn, and one more each
// minute while that lasts. A nil logger discards. As the verifier of a listener it also passes the
// reason to Hooks.Answered. The sender must still prove its identity. Until verifier is in its
// place, a runtime can trigger others, as with [InsecureAllowAll].
func ObserveOnly(verifier core.Verifier, logger *slog.Logger) core.Verifier {
	return &observer{verifier, newObservedLog(logger)}
}

type observer struct {
	verifier core.Verifier
	log      observedLog
}

func (o *observer) Validate() error { return option.Verifier(o.verifier) }

func (o *observer) ForRequest() core.Verifier {
	return &observer{intake.ForRequest(o.verifier), o.log}
}

func (o *observer) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if err := o.verifier.Verify(ctx, peer, event); err != nil {
		o.log.taken(ctx, peer.ID, err)
	}
	return nil
}

// observedPeers are those of PeerOptions.ObserveOnly.
type observedPeers struct {
	strict, any *headerPeers
	log         observedLog
}

func (o *observedPeers) identify(r *http.Request) (core.Peer, error) {
	peer, err := o.strict.identify(r)
	if err == nil || core.Reason(err) != reasonUntrustedProxy {
		return peer, err
	}
	peer, failed := o.any.identify(r)
	if failed == nil {
		o.log.taken(r.Context(), peer.ID, err)
	}
	return peer, failed
}

// observedLog notes events that were taken although they would be refused.
type observedLog struct{ log *slog.Logger }

func newObservedLog(logger *slog.Logger) observedLog {
	return observedLog{pacedlog.New(logger, time.Minute, "runtime", "reason")}
}

func (o observedLog) taken(ctx context.Context, runtime core.RuntimeID, err error) {
	if seen, ok := ctx.Value(observedKey{}).(*observed); ok && seen.reason == "" {
		seen.reason = core.Reason(err)
	}
	o.log.WarnContext(ctx, "event taken that would be refused without ObserveOnly",
		slog.String("runtime", string(runtime)), slog.String("reason", core.Reason(err)), slog.Any("error", err))
}

// observed has the first reason for which a request would be refused. It is in the context of a
// request, which one goroutine answers.
type observed struct{ reason string }

type observedKey struct{}

// observing returns a request that can have a reason, if the listener observes only.
func (l *Listener) observing(r *http.Request) *http.Request {
	if _, only := l.verifier.(*observer); !only && !l.peers.observeOnly {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), observedKey{}, &observed{}))
}

func observedIn(r *http.Request) string {
	if seen, ok := r.Context().Value(observedKey{}).(*observed); ok {
		return seen.reason
	}
	return ""
}
