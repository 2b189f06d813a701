package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/httpserver"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// maxBodies bounds the buffers of reviews in bytes, with those that are kept for the next one and
// those that the collector has not freed. It has room for a review of 8 MiB in addition to the
// buffer of 512 KiB that the review replaces, and for other reviews. A resync replaces a review
// that finds no room.
const maxBodies = 21 << 19

func (b *builder) addWebhook() error {
	inbox := b.newInbox()
	reviews, err := b.newReviews(inbox)
	if err != nil {
		return err
	}
	handler := b.withCanary(b.parts.Tracing.Webhook(reviews))
	b.source, err = b.bindServer("webhook", b.opts.Webhook.Address, handler, b.webhookOptions(inbox))
	return err
}

func (b *builder) newReviews(inbox *Inbox) (http.Handler, error) {
	handler, err := admission.New(b.parts.Tracing.Acceptor(inbox), admission.Options{
		Serves:          b.managers.serves,
		OwnerAnnotation: b.opts.OwnerAnnotation,
		RequireOwner:    b.opts.Contract.NeedsOwner(),
		MaxBodies:       maxBodies,
		Logger:          b.log,
		Hooks: admission.Hooks{
			InFlight: b.metrics.InFlight,
			Reviewed: func(review hook.Review) {
				if b.keys.callers != nil { // Without a client certificate, any pod can send a review.
					inbox.Proved(review.Manager)
				}
				b.metrics.Reviewed(review)
			},
			Refused:      b.metrics.Refused,
			OwnerProblem: b.metrics.OwnerProblem,
			Panicked:     b.metrics.Panicked,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return handler, nil
}

// webhookOptions offers HTTP/1.1 only: see bindServer. The handshake takes the protocols of this
// config.
func (b *builder) webhookOptions(inbox *Inbox) httpserver.Options {
	var callers keys.Source // nil: the webhook demands no client certificate
	if b.keys.callers != nil {
		callers = b.keys.callers
	}
	config := keys.WebhookTLSConfig(b.keys.serving, callers, b.opts.Webhook.ClientNames...)
	config.NextProtos = []string{"http/1.1"}
	return httpserver.Options{
		TLS:            config,
		MaxConnections: b.opts.Webhook.MaxConnections,
		MaxHandshakes:  b.opts.Webhook.MaxHandshakes,
		// 2 KiB of ClientHello, 8 KiB of client certificates, a header, and a record of TLS.
		MaxHandshakeBytes: 32 << 10,
		ShutdownTimeout:   b.opts.ShutdownTimeout / requestsPart,
		HandshakeFailed: func(cause string, _ net.Addr, _ error) {
			b.metrics.HandshakeFailed(hook.HandshakeFailure{Cause: hook.HandshakeCause(cause)})

			if isRejection(cause) {
				inbox.Failed()
			}
		},
		// The API server goes on without an answer, and never sends the review.
		HandshakeSlow: inbox.resyncAll,
		ConnectionClosed: func(reason string) {
			b.connectionDropped("webhook", reason)
			inbox.resyncAll()
		},
	}
}

// isRejection reports whether one end rejected the certificate of the other, as an API server with
// a wrong caBundle does ([httpserver.Options]). A scanner of ports fails in other ways.
func isRejection(cause string) bool {
	return slices.Contains([]string{"bad_certificate", "untrusted", "no_certificate"}, cause)
}

func (b *builder) withCanary(reviews http.Handler) http.Handler {
	if b.hasNoCanary() {
		return reviews
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == canary.Path {
			canary.Handler{}.ServeHTTP(w, r)
		} else {
			reviews.ServeHTTP(w, r)
		}
	})
}

func (b *builder) hasNoCanary() bool { return b.parts.Canary == nil && b.opts.Canary.isOff() }

// addCanary requests a resync at each recovery, as changes may have been missed before.
func (b *builder) addCanary() error {
	if b.hasNoCanary() {
		return nil
	}

	var write canary.Write
	if own := b.parts.Canary; own != nil {
		write = func(ctx context.Context, nonce string) (canary.Answer, error) {
			answer, err := own(ctx, nonce)
			return canary.Answer(answer), err
		}
	} else {
		lease, err := canary.NewLease(b.opts.Canary.Lease, b.opts.Canary.apiServer())
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		write = lease.Write
	}

	writer, err := canary.New(write, canary.Options{
		Interval: b.opts.Canary.Interval, Recovered: b.outbox.Resync, Restored: b.outbox.Resync,
		Probed: b.metrics.CanaryProbed, Logger: b.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}

	b.heartbeats.canary = writer.State
	b.heartbeats.canaryProblem = writer.Problem
	b.canary = []component{{"canary", writer.Start}}
	return nil
}
