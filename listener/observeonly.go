package listener

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// observedEvery is the pace of the lines of [ObserveOnly].
const observedEvery = time.Minute

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

// Validate refuses a verifier that is nil.
func (o *observer) Validate() error { return option.Verifier(o.verifier) }

// ForRequest returns the verifier for one request (see [New]).
func (o *observer) ForRequest() core.Verifier {
	return &observer{intake.ForRequest(o.verifier), o.log}
}

// Verify implements [core.Verifier].
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
	return observedLog{pacedlog.New(logger, observedEvery, "runtime", "reason")}
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
