package simulation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

type webhookConfiguration = admissionregistrationv1.ValidatingWebhookConfiguration

// keptWebhooks makes one plan in fifteen a scene in which the agents keep their own webhook configuration. Another
// program changes it, and writes follow that reach no webhook. Before the first one, the agents make the configuration.
func (d dice) keptWebhooks(p *Plan) {
	if !d.chance(1. / 15) {
		return
	}
	d.stage(p)
	r := &p.Runtimes[0]
	r.Canary, r.Contract, r.Keeps, r.Agents = true, contract.V3, true, 1+d.IntN(2)
	d.updates(p, 2, 0, 10*time.Second)
	at := d.between(time.Minute, 2*time.Minute)
	for range 1 + d.IntN(mostPrompt) {
		p.Faults = append(p.Faults, Fault{Kind: WebhooksChanged, At: at, For: keptWithin, Value: d.IntN(len(webhookChanges()))})
		d.updates(p, 3, at, at+time.Second)
		at += d.between(20*time.Second, 2*time.Minute)
	}
}

const (
	// keptWithin is the time within which an agent puts its webhooks back. From the third change within 10 min on, it
	// waits for longer.
	keptWithin = 5 * time.Second
	mostPrompt = 2
)

// webhookChanges returns the changes that another program makes.
func webhookChanges() []func(live *webhookConfiguration) *webhookConfiguration {
	return []func(live *webhookConfiguration) *webhookConfiguration{
		func(*webhookConfiguration) *webhookConfiguration { return nil },
		func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks = nil
			return live
		},
		func(live *webhookConfiguration) *webhookConfiguration { // The webhook of the canary stays.
			live.Webhooks = slices.DeleteFunc(live.Webhooks, func(hook admissionregistrationv1.ValidatingWebhook) bool {
				return calledFor(&hook) != ""
			})
			return live
		},
		func(live *webhookConfiguration) *webhookConfiguration {
			for n := range live.Webhooks {
				live.Webhooks[n].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "object"}}
			}
			return live
		},
	}
}

// changeWebhooks returns the function that requires them to be back.
func (c *cluster) changeWebhooks(kind int) (end func()) {
	mend := c.world.history.Break(c.plan.Name, string(WebhooksChanged))
	c.kept.change(webhookChanges()[kind])
	return func() {
		live := c.kept.now()
		problem := fmt.Sprint(admission.Differences(live))
		isKept := live != nil && len(admission.Differences(live)) == 0
		c.world.history.Kept(c.plan.Name, isKept, problem)
		if isKept {
			mend()
		}
	}
}

// keep makes the agents of a runtime keep their webhooks.
func (c *cluster) keep(opts *agentlib.Options) {
	opts.Webhook.Configuration = "agent"
	opts.Webhook.Own = agentlib.OwnConfiguration{Watches: c.watches, URL: agentURL, CA: c.world.pki.webhookCA()}
	opts.Canary.Lease = types.NamespacedName{Namespace: "runtime-watcher", Name: "canary"}
}

// webhookCA is the file with the authority of the webhook.
func (p *pki) webhookCA() string { return filepath.Join(p.store, "webhook-ca.crt") }

// keptConfiguration is the webhook configuration of a runtime with agents that keep it.
type keptConfiguration struct {
	mu    sync.Mutex
	live  *webhookConfiguration
	made  int
	ended chan struct{} // closed at the next change
}

func newKeptConfiguration() *keptConfiguration { return &keptConfiguration{ended: make(chan struct{})} }

// change is a write.
func (k *keptConfiguration) change(edit func(live *webhookConfiguration) *webhookConfiguration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live != nil {
		k.set(edit(k.live.DeepCopy()))
	}
}

// set needs the lock.
func (k *keptConfiguration) set(live *webhookConfiguration) {
	k.live = live
	close(k.ended)
	k.ended = make(chan struct{})
}

func (k *keptConfiguration) now() *webhookConfiguration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live.DeepCopy()
}

// callsForCanary reports whether the API server calls the agent for its canary.
func (k *keptConfiguration) callsForCanary() bool {
	live := k.now()
	return live != nil && slices.ContainsFunc(live.Webhooks, func(hook admissionregistrationv1.ValidatingWebhook) bool {
		return calledFor(&hook) == "" && hook.ObjectSelector.MatchLabels["no"] == ""
	})
}

var errConflict = errors.New("409 Conflict")

// keptBy is the configuration as one agent reads and writes it. It implements [agentlib.ConfigurationStore].
type keptBy struct {
	*keptConfiguration

	writer *agent
}

// Read implements [agentlib.ConfigurationStore].
func (k keptBy) Read(ctx context.Context) (*webhookConfiguration, error) {
	k.writer.awaitResume()
	return k.now(), ctx.Err()
}

// Apply implements [agentlib.ConfigurationStore].
func (k keptBy) Apply(_ context.Context, want, live *webhookConfiguration) (*webhookConfiguration, error) {
	k.writer.awaitResume()
	if k.writer.killed.Load() {
		return nil, errKilled
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if live != nil && (k.live == nil || k.live.UID != live.UID) {
		return nil, errConflict
	}
	next := want.DeepCopy()
	if k.live == nil {
		k.made++
		next.UID = types.UID(strconv.Itoa(k.made))
	} else {
		next.UID = k.live.UID
	}
	next.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: canary.FieldManager, Operation: metav1.ManagedFieldsOperationApply}}
	k.set(next)
	return next.DeepCopy(), nil
}

// Delete implements [agentlib.ConfigurationStore].
func (k keptBy) Delete(_ context.Context, live *webhookConfiguration) error {
	k.writer.awaitResume()
	if k.writer.killed.Load() {
		return errKilled
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live == nil || k.live.UID != live.UID {
		return errConflict
	}
	k.set(nil)
	return nil
}

// Watch implements [agentlib.ConfigurationStore].
func (k keptBy) Watch(ctx context.Context, changed func()) error {
	for {
		k.mu.Lock()
		ended := k.ended
		k.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			changed()
		}
	}
}
