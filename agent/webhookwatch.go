package agent

import (
	"context"
	"log/slog"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// webhookWatch compares the webhooks that the API server has with those that were applied. The
// canary proves only its own webhook, so a watch may miss changes while the canary is alive.
type webhookWatch struct {
	read  func(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error)
	every time.Duration
	// countCheck counts each comparison.
	countCheck func(hook.WebhookCheck)
	// requestResync is called when the webhooks are right again.
	requestResync func()
	// log is for watchConfiguration only.
	log lineLimiter

	// found is the difference that the last comparison found.
	found finding
}

// foundProblem is for heartbeats, which only read memory.
func (w *webhookWatch) foundProblem() string { return w.found.text() }

func (w *webhookWatch) watchConfiguration(ctx context.Context) error {
	w.compareWebhooks(ctx)
	periodic.Call(ctx, w.every, func() { w.compareWebhooks(ctx) })
	return nil
}

// compareWebhooks keeps the last result when the configuration cannot be read: that proves nothing.
func (w *webhookWatch) compareWebhooks(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, min(webhooksTimeout, w.every))
	defer cancel()
	live, err := w.read(reading)
	if ctx.Err() != nil {
		return
	}

	if err != nil {
		w.countCheck(hook.WebhookCheck{Result: webhooksFailed})
		w.log.warnPaced(ctx, "cannot read the webhook configuration, so changed webhooks go unnoticed: "+
			"check the error, the ClusterRole and WEBHOOK_CONFIGURATION", err.Error())
		return
	}

	problem := webhookProblem(live)
	former := w.foundProblem()
	w.found.setText(problem)
	if problem != "" {
		w.countCheck(hook.WebhookCheck{Result: webhooksChanged})
		w.log.noteLine(ctx, slog.LevelError, "webhooks differ from the applied configuration, so changes are missed: "+
			"apply the webhook configuration again, and find the program that changes it", problem)
		return
	}

	w.countCheck(hook.WebhookCheck{Result: webhooksSame})
	if former == "" {
		w.log.forgetLast()
	} else {
		w.log.noteEnd(ctx, "the webhooks match the applied configuration again", former)
		w.requestResync() // The API server did not call the agent for some writes.
	}
}
