package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	"github.com/runtime-watcher/runtime-watcher/keys"
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
			requestResync: func() {
				mu.Lock()
				defer mu.Unlock()
				resyncs++
			},
			countCheck: func(c hook.WebhookCheck) {
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

// A complete configuration of an agent with other settings differs if it calls for less. A running
// agent waits for that replica, but a check that said nothing would promise calls that do not come.
func TestACheckNamesTheCallsThatAReplicaLeavesOut(t *testing.T) {
	ca, err := testpki.NewCA("webhook", testpki.Options{})
	check(t, err)
	leaf, err := ca.Server("agent", testpki.Options{DNSNames: []string{"runtime-watcher.runtime-watcher.svc"}})
	check(t, err)

	volume := testpki.NewVolume(t.TempDir())
	check(t, volume.Write(testpki.Files(leaf, ca)))
	var paths keys.Paths
	paths.CA, paths.Certificate, paths.Key = volume.Paths()
	serving, err := keys.NewFiles(paths, keys.FilesOptions{})
	check(t, err)

	for name, test := range map[string]struct {
		live    []string
		problem string
	}{
		"the same":  {[]string{"configmaps", "secrets"}, ""},
		"more":      {[]string{"configmaps", "secrets", "pods"}, ""},
		"less":      {[]string{"configmaps"}, "default.secrets"},
		"different": {[]string{"configmaps", "pods"}, "default.secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			other := intendedFor(serving, paths.CA, test.live...)
			live, err := other.buildConfiguration()
			check(t, err)

			opts := Options{
				Canary: storedAtServer(t, live),
				Webhook: Webhook{Configuration: "runtime-watcher", Keys: paths, Own: OwnConfiguration{
					Watches: watchesOf("configmaps", "secrets"),
					Service: types.NamespacedName{Namespace: "runtime-watcher", Name: "runtime-watcher"},
				}},
			}
			problem, err := WebhookProblem(t.Context(), Connection{Keys: paths}, opts)
			check(t, err)

			if (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
				t.Errorf("problem %q, want %q", problem, test.problem)
			}
		})
	}
}

// storedAtServer is the access to an API server that has the configuration, and takes each apply.
func storedAtServer(t *testing.T, live *webhookConfiguration) Canary {
	t.Helper()

	text, err := json.Marshal(live)
	check(t, err)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" {
			t.Error("a check writes the configuration")
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(server.Close)

	dir := t.TempDir()
	access := Canary{
		Lease:  types.NamespacedName{Namespace: "runtime-watcher", Name: "canary"},
		Server: server.URL, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"),
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	check(t, os.WriteFile(access.TokenFile, []byte("secret"), 0o600))
	check(t, os.WriteFile(access.CAFile, bundle, 0o600))
	return access
}
