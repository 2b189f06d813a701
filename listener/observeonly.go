package listener

import (
	"context"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

// observedEvery is the pace of the lines of [ObserveOnly].
const observedEvery = time.Minute

// ObserveOnly lets each event pass. It is for a fleet that gets a verifier for the first time. For
// each runtime and reason that verifier would refuse, logger gets a line at warn, and one more each
// minute while that lasts. A nil logger discards. The sender must still prove its identity. Until
// verifier is in its place, a runtime can trigger others, as with [InsecureAllowAll].
func ObserveOnly(verifier core.Verifier, logger *slog.Logger) core.Verifier {
	return &observer{verifier: verifier, log: pacedlog.New(logger, observedEvery, "runtime", "reason")}
}

type observer struct {
	verifier core.Verifier
	log      *slog.Logger
}

func (o *observer) validate() error { return validateAll([]core.Verifier{o.verifier}) }

// ForRequest returns the verifier for one request (see [New]).
func (o *observer) ForRequest() core.Verifier {
	return &observer{verifier: intake.ForRequest(o.verifier), log: o.log}
}

// Verify implements [core.Verifier].
func (o *observer) Verify(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
	if err := o.verifier.Verify(ctx, peer, event); err != nil {
		o.log.WarnContext(ctx, "event taken that would be refused without ObserveOnly",
			slog.String("runtime", string(peer.ID)), slog.String("reason", core.Reason(err)), slog.Any("error", err))
	}
	return nil
}
