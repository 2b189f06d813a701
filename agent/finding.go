package agent

import (
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// The results of a comparison of webhooks, or of a repair, which are values of a metric label.
const (
	webhooksSame    = "same"
	webhooksChanged = "changed"
	// webhooksFailed is the result of a read or a write that failed.
	webhooksFailed = "failed"
)

// webhooksTimeout bounds one request for the webhook configuration.
const webhooksTimeout = 10 * time.Second

// maxWebhookProblem is in bytes, as in a heartbeat.
const maxWebhookProblem = 512

// finding is the problem that heartbeats report. It is safe for concurrent use.
type finding struct{ current atomic.Pointer[string] }

// text is empty without a problem.
func (f *finding) text() string {
	if current := f.current.Load(); current != nil {
		return *current
	}
	return ""
}

func (f *finding) setText(problem string) { f.current.Store(&problem) }

// webhookProblem is bounded, as the names of webhooks come from the runtime.
func webhookProblem(live *admissionregistrationv1.ValidatingWebhookConfiguration) string {
	return bounded(strings.Join(admission.Differences(live), "; "))
}

func bounded(text string) string {
	if len(text) > maxWebhookProblem {
		const more = " …"
		text = strings.ToValidUTF8(text[:maxWebhookProblem-len(more)], "") + more
	}
	return text
}
