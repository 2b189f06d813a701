package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func appliedWebhooks(t *testing.T) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()

	ca, err := testpki.NewCA("webhook", testpki.Options{})
	check(t, err)
	applied, err := admission.WebhookConfiguration("runtime-watcher",
		admission.Endpoint{URL: "https://agent", CABundle: ca.PEM}, []watch.Watch{{
			Name: types.NamespacedName{Namespace: "default", Name: "widgets"}, Manager: "widgets",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		}}, admission.ConfigurationOptions{})
	check(t, err)

	return applied
}

// A webhook was removed beside a living canary, and the runtime was fresh.
func TestChangedWebhooksAreReported(t *testing.T) {
	applied := appliedWebhooks(t)
	removed := applied.DeepCopy()
	removed.Webhooks = nil
	refused := errors.New("403 Forbidden")

	synctest.Test(t, func(t *testing.T) {
		// The watch reads and writes these in its own goroutine.
		var mu sync.Mutex
		live := applied
		failure := error(nil)
		var results []string
		resyncs := 0
		log := lockedBuffer{mu: &mu}
		w := &webhookWatch{
			read: func(context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
				mu.Lock()
				defer mu.Unlock()
				return live, failure
			},
			every: 30 * time.Second,
			restored: func() {
				mu.Lock()
				defer mu.Unlock()
				resyncs++
			},
			checked: func(c hook.WebhookCheck) {
				mu.Lock()
				defer mu.Unlock()
				results = append(results, c.Result)
			},
			log: lineLimiter{to: slog.New(slog.NewTextHandler(&log, nil))},
		}

		go func() { _ = w.watchConfiguration(t.Context()) }()
		synctest.Wait() // The first comparison.

		for _, step := range []struct {
			name    string
			live    *admissionregistrationv1.ValidatingWebhookConfiguration
			failure error
			problem string
			result  string
			resyncs int
			logged  string
		}{
			{"as applied", applied, nil, "", "same", 0, ""},
			{"not readable", nil, refused, "", "failed", 0, "cannot read"},
			{"removed", removed, nil, "is missing", "changed", 0, "differ from the applied"},
			{"still removed", removed, nil, "is missing", "changed", 0, ""},
			{"not readable meanwhile", nil, refused, "is missing", "failed", 0, "cannot read"},
			{"no configuration", nil, nil, "configuration is missing", "changed", 0, "differ from the applied"},
			{"corrected", applied, nil, "", "same", 1, "match the applied"},
			{"as applied still", applied, nil, "", "same", 1, ""},
			{"removed again", removed, nil, "is missing", "changed", 1, "differ from the applied"},
			{"corrected again", applied, nil, "", "same", 2, "match the applied"},
		} {
			mu.Lock()
			live, failure = step.live, step.failure
			log.text.Reset()
			results = nil
			mu.Unlock()

			time.Sleep(30 * time.Second)
			synctest.Wait()

			if have := w.foundProblem(); (have == "") != (step.problem == "") || !strings.Contains(have, step.problem) {
				t.Errorf("%s: problem %q, want %q", step.name, have, step.problem)
			}

			mu.Lock()
			if !slices.Equal(results, []string{step.result}) || resyncs != step.resyncs {
				t.Errorf("%s: results %q and %d resyncs, want %q and %d", step.name, results, resyncs, step.result, step.resyncs)
			}
			if have := log.text.String(); (have == "") != (step.logged == "") || !strings.Contains(have, step.logged) {
				t.Errorf("%s: log %q, want %q", step.name, have, step.logged)
			}

			mu.Unlock()
		}

		mu.Lock()
		live = removed
		log.text.Reset()
		mu.Unlock()

		time.Sleep(time.Hour)
		synctest.Wait()

		mu.Lock()
		defer mu.Unlock()
		if n := strings.Count(log.text.String(), "\n"); n < 10 || n > 13 {
			t.Errorf("%d lines within an hour, want one in 5 min", n)
		}
	})
}

// lockedBuffer is a log that a test reads under mu.
type lockedBuffer struct {
	mu   *sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

// Names of webhooks come from the runtime.
func TestAWebhookProblemIsBounded(t *testing.T) {
	t.Parallel()

	live := appliedWebhooks(t)
	webhooks := live.Webhooks[:1]
	for n := range 100 {
		next := webhooks[0].DeepCopy()
		next.Name = strings.Repeat("ü", n+1) + ".example.com"
		webhooks = append(webhooks, *next)
	}

	live.Annotations[admission.RecordAnnotation] = admission.Record(webhooks)
	live.Webhooks = nil
	if have := webhookProblem(live); len(have) > maxWebhookProblem || !strings.HasSuffix(have, "…") || !strings.Contains(have, "missing") {
		t.Errorf("%d bytes: %q", len(have), have)
	}
}

// However often problems alternate, come and go, the lines are bounded, and a new problem still has
// one.
func TestLinesAboutWebhooksAreBounded(t *testing.T) {
	for name, repeat := range map[string]func(l *lineLimiter){
		"one problem": func(l *lineLimiter) { l.warnPaced(t.Context(), "cannot be read", "a") },
		"two that alternate": func(l *lineLimiter) {
			l.warnPaced(t.Context(), "not as intended", "a")
			l.warnPaced(t.Context(), "cannot be written", "b")
		},
		"one that comes and goes": func(l *lineLimiter) {
			l.warnPaced(t.Context(), "not as intended", "a")
			l.noteEnd(t.Context(), "as intended again", "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				l := &lineLimiter{to: slog.New(slog.NewTextHandler(&log, nil))}
				for begin := time.Now(); time.Since(begin) < time.Hour; time.Sleep(10 * time.Second) {
					repeat(l)
				}

				if lines := strings.Count(log.String(), "\n"); lines < 12 || lines > 50 {
					t.Errorf("%d lines within an hour, want 12 to 50", lines)
				}

				l.warnPaced(t.Context(), "not as intended", "new")
				if !strings.Contains(log.String(), "problem=new") {
					t.Error("no line for a new problem")
				}
			})
		})
	}
}
