package certificates

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxSteps bounds the steps of one call. A rotation has fewer that do not wait.
const maxSteps = 8

// Reconcile does the next steps for the CA and the server certificate, from the first Issuer to the
// end of a rotation, without waiting. Call it again after [Status.RequeueAfter], and when a Secret
// or a Certificate changes. It may be interrupted at any point.
func (c *Certificates) Reconcile(ctx context.Context) (Status, error) {
	for range maxSteps {
		status, again, err := c.reconcileOnce(ctx)
		if err != nil || !again {
			return status, err
		}
	}
	return Status{}, fmt.Errorf("certificates: more than %d steps: does another field owner undo them?", maxSteps)
}

func (c *Certificates) reconcileOnce(ctx context.Context) (status Status, again bool, err error) {
	begun := time.Now()
	seen, err := c.observe(ctx)
	if err != nil {
		return Status{}, false, err
	}
	if err := c.checkListener(seen); err != nil {
		return Status{}, false, err
	}

	s := plan(seen.view)
	status = c.statusOf(seen.view, s)
	// Reading all runtimes takes at most a tenth of the time: a rotation of thousands may wait for
	// weeks.
	const pauses = 9
	status.RequeueAfter = max(status.RequeueAfter, min(pauses*time.Since(begun), longestRequeue))
	if err := c.maintainObjects(ctx, seen, status); err != nil {
		return status, false, fmt.Errorf("certificates: %w", err)
	}
	if s.action == actionNone {
		c.announceWaiting(ctx, seen, status)
		return status, false, nil
	}

	c.opts.Logger.InfoContext(ctx, "step of the certificates",
		slog.String("phase", string(s.phase)), slog.String("action", string(s.action)),
		slog.Int("generation", status.Generation), slog.Int("waiting", len(s.waiting)))
	if err := c.takeStep(ctx, seen, s); err != nil {
		return status, false, fmt.Errorf("certificates: %s: %w", s.action, err)
	}

	// A new certificate is never issued immediately.
	return status, s.action != actionReissue && s.action != actionReissueServer, nil
}

func (c *Certificates) statusOf(v view, s step) Status {
	newest := v.newest()
	status := Status{
		Phase: s.phase, Confirming: s.phase == PhaseConfirming, Ready: v.published.present,
		Generation: newest.generation, CAFingerprint: newest.fingerprint,
		Waiting: s.waiting, Overdue: overdue(v, c.opts.RenewBefore), RequeueAfter: max(s.after, pollInterval/2),
	}

	status.Message = message(status)
	return status
}

func (c *Certificates) maintainObjects(ctx context.Context, seen *observed, status Status) error {
	if c.opts.CAIssuer.Name == "" {
		selfSigned := c.newIssuer(c.names.selfSigned(), certv1.IssuerConfig{SelfSigned: &certv1.SelfSignedIssuer{}})
		if err := c.applyOwn(ctx, selfSigned); err != nil {
			return err
		}
	}

	if err := c.deleteOrphans(ctx, seen); err != nil {
		return err
	}
	if seen.serverSigner == 0 || seen.clientSigner == 0 {
		return nil
	}

	clients := c.signingIssuer(c.names.clients(), seen.clientSigner)
	clients.Annotations = map[string]string{c.names.key(annotationRotation): status.Message}
	servers := c.signingIssuer(c.names.servers(), seen.serverSigner)
	for _, object := range []client.Object{clients, servers, c.serverCertificate()} {
		if err := c.applyOwn(ctx, object); err != nil {
			return err
		}
	}

	return nil
}

const named = 10

func message(s Status) string {
	text := map[Phase]string{
		PhaseBootstrap:   "waiting for cert-manager to issue the first certificates",
		PhaseCreating:    "waiting for cert-manager to issue the next CA",
		PhasePropagating: "CA N is in the bundle, and signs once every listener has got it",

		PhaseReissuing:  "CA N signs for runtimes",
		PhaseConfirming: "the server certificate switches to CA N once every runtime trusts it",

		PhaseSwitching: "the server certificate switches to CA N",
		PhaseRetiring:  "the server certificate switches to CA N",
		PhaseStable:    "CA N signs everything",
	}[s.Phase]

	text = strings.ReplaceAll(text, "CA N", fmt.Sprintf("CA %d", s.Generation))
	if len(s.Waiting) > 0 {
		text += "; runtimes without it: " + list(s.Waiting)
	}
	return text
}

const issuance = 10 * time.Minute

func overdue(v view, renewBefore time.Duration) (runtimes []core.RuntimeID) {
	const part = 10
	renewal := renewBefore - renewBefore/part

	for _, r := range v.runtimes {
		late := v.now.Sub(r.created) > issuance
		if r.present {
			late = v.now.After(r.notAfter.Add(-renewal))
		}
		if late {
			runtimes = append(runtimes, r.runtime)
		}
	}

	return slices.Compact(runtimes)
}

func list(runtimes []core.RuntimeID) string {
	shown := runtimes
	if len(runtimes) > named {
		shown = append(slices.Clone(runtimes[:named]), "…")
	}
	return fmt.Sprintf("%d %v", len(runtimes), shown)
}

func (c *Certificates) announceWaiting(ctx context.Context, seen *observed, status Status) {
	if len(status.Waiting) == 0 {
		return
	}
	if _, due := c.notices.Take(status.Message, time.Now()); !due {
		return
	}

	c.opts.Logger.WarnContext(ctx, "rotation of the CA waits for runtimes",
		slog.String("phase", string(status.Phase)), slog.Int("generation", status.Generation),
		slog.Int("waiting", len(status.Waiting)), slog.String("runtimes", list(status.Waiting)))
	if c.opts.Recorder != nil && seen.clientsIssuer != nil {
		c.opts.Recorder.Eventf(seen.clientsIssuer, nil, corev1.EventTypeWarning,
			"RotationWaits", string(status.Phase), "%s", status.Message)
	}
}
