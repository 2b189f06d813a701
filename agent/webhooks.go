package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// The results of a comparison of webhooks.
const (
	webhooksSame      = "same"
	webhooksChanged   = "changed"
	webhooksNotRead   = "failed"
	webhooksTimeout   = 10 * time.Second
	webhooksLogEvery  = 5 * time.Minute
	maxWebhookProblem = 512 // bytes, as in a heartbeat
)

// webhookWatch compares the webhooks that the API server has with those that were applied. The
// canary proves its own webhook only, so a watch may miss changes beside a living canary.
type webhookWatch struct {
	read  func(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error)
	every time.Duration
	// checked counts a comparison, restored requests a resync when the webhooks are right again.
	checked  func(hook.WebhookCheck)
	restored func()
	// log is for start only.
	log lineLimiter

	// found is the difference that the last comparison found.
	found finding
}

// problem is for heartbeats, which only read memory.
func (w *webhookWatch) problem() string { return w.found.text() }

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

func (w *webhookWatch) start(ctx context.Context) error {
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
		w.checked(hook.WebhookCheck{Result: webhooksNotRead})
		w.log.warnPaced(ctx, "cannot read the webhook configuration, so changed webhooks go unnoticed: "+
			"check the error, the ClusterRole and WEBHOOK_CONFIGURATION", err.Error())
		return
	}

	problem := webhookProblem(live)
	former := w.problem()
	w.found.setText(problem)
	if problem != "" {
		w.checked(hook.WebhookCheck{Result: webhooksChanged})
		w.log.noteLine(ctx, slog.LevelError, "webhooks differ from the applied configuration, so changes are missed: "+
			"apply the webhook configuration again, and find the program that changes it", problem)
		return
	}

	w.checked(hook.WebhookCheck{Result: webhooksSame})
	if former == "" {
		w.log.reset()
	} else {
		w.log.ended(ctx, "the webhooks are as they were applied again", former)
		w.restored() // The API server did not call the agent for some writes.
	}
}

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

// lineLimiter logs each change of a problem, and the same problem again from time to time. It is
// not safe for concurrent use.
type lineLimiter struct {
	to *slog.Logger

	// last is the last line, empty after the end of a problem. logged has the lines within
	// webhooksLogEvery.
	last   string
	logged map[string]time.Time
	// used counts the lines, less one for each linesPace since. An hour has at most maxLines lines,
	// and one for each linesPace.
	used   int
	usedAt time.Time
}

// The bounds of a [lineLimiter]. Problems that alternate, or come and go, may use half of maxLines,
// so that there is always a line for a new one.
const (
	maxLines  = 20
	linesPace = 2 * time.Minute
)

func (l *lineLimiter) warnPaced(ctx context.Context, message, problem string) {
	l.noteLine(ctx, slog.LevelWarn, message, problem)
}

func (l *lineLimiter) noteLine(ctx context.Context, level slog.Level, message, problem string) {
	l.writeLine(ctx, level, message, "problem", problem)
}

// ended logs that a problem has ended.
func (l *lineLimiter) ended(ctx context.Context, message, before string) {
	l.reset()
	l.writeLine(ctx, slog.LevelInfo, message, "before", before)
}

func (l *lineLimiter) writeLine(ctx context.Context, level slog.Level, message, name, text string) {
	if l.takeLine(message+text, time.Now()) {
		l.to.Log(ctx, level, message, slog.String(name, text)) //nolint:sloglint // Each caller has constants.
	}
}

// takeLine reports whether a line is due.
func (l *lineLimiter) takeLine(line string, now time.Time) bool {
	maps.DeleteFunc(l.logged, func(_ string, at time.Time) bool { return now.Sub(at) >= webhooksLogEvery })
	l.restore(now)
	_, isLogged := l.logged[line]
	isScarce := l.used >= maxLines/2
	if l.used >= maxLines {
		return false
	}
	if isLogged && isScarce {
		return false
	}
	if isLogged && line == l.last {
		return false
	}

	if l.logged == nil {
		l.logged = make(map[string]time.Time)
	}
	l.logged[line] = now
	l.last = line
	l.used++
	return true
}

// restore lets lines of the past count no more.
func (l *lineLimiter) restore(now time.Time) {
	passed := int(now.Sub(l.usedAt) / linesPace)
	if l.used -= passed; l.used <= 0 {
		l.used = 0
		l.usedAt = now
		return
	}
	l.usedAt = l.usedAt.Add(time.Duration(passed) * linesPace)
}

// reset makes the next problem a new one.
func (l *lineLimiter) reset() { l.last = "" }

// addWebhookWatch is without effect unless the configuration can be read.
func (b *builder) addWebhookWatch() error {
	if b.opts.Webhook.Own.isOn() {
		return b.addWebhookKeeper()
	}

	read := b.parts.Configuration
	name := b.opts.Webhook.Configuration
	if read == nil && name == "" {
		return nil
	}

	if read == nil {
		stored, err := newStoredConfiguration(b.opts)
		if err != nil {
			return err
		}
		read = stored.Read
	}

	watch := &webhookWatch{
		read: read, every: b.opts.canaryInterval(), checked: b.metrics.WebhooksChecked, restored: b.outbox.Resync,
		log: lineLimiter{to: b.log},
	}
	b.heartbeats.webhooks = watch.problem
	b.webhooks = []component{{"comparison of webhooks", watch.start}}
	return nil
}

// WebhookProblem reads a webhook configuration with the settings of an agent. It returns how the
// webhooks differ from the webhooks that were applied, or "" if they do not differ. With
// [Webhook].Own, it compares them with the webhooks of its watches and tries an apply as a dry run.
func WebhookProblem(ctx context.Context, to Connection, opts Options) (string, error) {
	store, err := newStoredConfiguration(opts)
	if err != nil {
		return "", err
	}

	store.dryRun = true
	live, err := store.Read(ctx)
	if err != nil {
		return "", err
	}
	if !opts.Webhook.Own.isOn() {
		return webhookProblem(live), nil
	}

	paths := opts.Webhook.Keys
	if paths == (keys.Paths{}) {
		paths = to.Keys
	}
	serving, err := keys.NewFiles(paths, keys.FilesOptions{})
	if err != nil {
		return "", err
	}

	own := newIntended(opts, serving, to.Keys.CA)
	want, err := own.configuration()
	if err != nil {
		return bounded(err.Error()), nil
	}
	state, problem := own.judge(live, want)
	if state == standsForeign {
		return bounded(problem), nil
	}

	_, err = store.Apply(ctx, want, live)
	return bounded(problem), err
}

func readerOf(
	read func(context.Context) ([]byte, error),
) func(context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return func(ctx context.Context) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
		text, err := read(ctx)
		if err != nil || text == nil {
			return nil, err
		}
		live := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := json.Unmarshal(text, live); err != nil {
			return nil, fmt.Errorf("agent: webhook configuration: %w", err)
		}
		return live, nil
	}
}
