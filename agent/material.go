package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// The uses of key material. They are values of a metric label.
const (
	useClient     = "client"
	useServer     = "server"
	useCA         = "ca"
	useWebhookCAs = "webhook_ca"
)

// keyMaterial is key material with the metrics and the log lines of its uses. The material calls
// its methods as hooks.
type keyMaterial struct {
	material

	uses []string
	// renewed is called for each new generation. It is set before the material is followed.
	renewed func()
	metrics *watchermetrics.Agent
	log     *slog.Logger
}

// A set without files is nil. serving equals client unless the webhook has a certificate itself.
type keySet struct{ client, serving, callers *keyMaterial }

func (b *builder) addKeys() error {
	webhook := b.opts.Webhook
	shared := webhook.Keys == (keys.Paths{}) && b.parts.ServingKeys == nil && b.parts.Source == nil
	clientUses := []string{useClient}
	if shared {
		clientUses = append(clientUses, useServer)
	}
	var errs [3]error
	b.keys.client, errs[0] = b.newKeyMaterial(b.parts.ClientKeys, b.to.Keys, clientUses...)
	b.keys.serving, errs[1] = b.newKeyMaterial(b.parts.ServingKeys, webhook.Keys, useServer)
	b.keys.callers, errs[2] = b.newKeyMaterial(nil, keys.Paths{CA: webhook.ClientCAs}, useWebhookCAs)
	if shared {
		b.keys.serving = b.keys.client
	}
	return errors.Join(errs[:]...)
}

// newKeyMaterial follows a source, or else files. It returns nil without either.
func (b *builder) newKeyMaterial(source keys.Source, paths keys.Paths, uses ...string) (*keyMaterial, error) {
	if source == nil && paths == (keys.Paths{}) {
		return nil, nil
	}

	k := &keyMaterial{uses: uses, renewed: func() {}, metrics: b.metrics}
	k.log = b.log.With(slog.String("use", k.name()))
	var err error

	hooks := keys.FilesHooks{Reloaded: k.reloaded, Refused: k.refused}
	if source != nil {
		k.material, err = follow(source, hooks)
	} else {
		k.material, err = keys.NewFiles(paths, keys.FilesOptions{Logger: k.log, Hooks: hooks})
	}

	if err != nil {
		return nil, err
	}
	if slices.Contains(uses, useServer) && k.Status().Material.Certificate == nil {
		return nil, fmt.Errorf("agent: key material of use %q: want a certificate with its key", k.name())
	}

	k.measure()
	k.warnOfServing()
	return k, nil
}

func (k keySet) all() []*keyMaterial {
	var sets []*keyMaterial
	for _, set := range []*keyMaterial{k.client, k.serving, k.callers} {
		if set != nil && !slices.Contains(sets, set) {
			sets = append(sets, set)
		}
	}
	return sets
}

func (k *keyMaterial) name() string { return strings.Join(k.uses, ",") }

func (k *keyMaterial) reloaded(keys.Generation) {
	for _, use := range k.uses {
		k.metrics.KeyMaterial(use).Reloaded(k.validity(use))
	}
	k.measure()
	k.warnOfServing()
	k.renewed()
}

func (k *keyMaterial) refused(refusal keys.Refusal) {
	for _, use := range k.uses {
		k.metrics.KeyMaterial(use).Refused(refusal)
	}
}

func (k *keyMaterial) measure() {
	for _, use := range k.uses {
		k.metrics.KeyMaterial(use).Expires(k.validity(use))
	}
	if k.uses[0] == useClient {
		k.metrics.KeyMaterial(useCA).Expires(k.validity(useCA))
	}
}

// validity returns the zero time as the beginning of a CA bundle, which has several certificates.
func (k *keyMaterial) validity(use string) keys.Generation {
	material := k.Status().Material
	if use == useCA || use == useWebhookCAs {
		return keys.Generation{NotAfter: material.RootsNotAfter}
	}
	return keys.Generation{NotBefore: material.NotBefore, NotAfter: material.NotAfter}
}

// warnOfServing logs the faults for which API servers reject the certificate of the webhook. The
// chain is not checked: the agent does not know the caBundle of the webhook configuration.
func (k *keyMaterial) warnOfServing() {
	pair := k.Status().Material.Certificate
	if !slices.Contains(k.uses, useServer) || pair == nil {
		return
	}

	leaf := pair.Leaf
	if faults := connect.ServingFaults(leaf); len(faults) > 0 {
		k.log.Warn("API servers reject the certificate of the webhook",
			slog.String("fault", strings.Join(faults, "; ")), slog.String("subject", leaf.Subject.String()))
	}
}

const keysPoll = 5 * time.Second

// material is key material that is followed. [keys.Files] implements it.
type material interface {
	keys.Source

	Status() keys.Status
	Start(ctx context.Context) error
}

// followed follows a source as [keys.Files] follows files: its last good material stays in use.
type followed struct {
	source keys.Source
	hooks  keys.FilesHooks
	status atomic.Pointer[keys.Status]
}

func follow(source keys.Source, hooks keys.FilesHooks) (*followed, error) {
	first, err := source.Material()
	if err != nil {
		return nil, err
	}
	f := &followed{source: source, hooks: hooks}
	f.status.Store(&keys.Status{Material: first, Loaded: time.Now()})
	return f, nil
}

// Material returns the last valid material. It never fails.
func (f *followed) Material() (*keys.Material, error) { return f.Status().Material, nil }

func (f *followed) Status() keys.Status { return *f.status.Load() }

func (f *followed) Start(ctx context.Context) error {
	f.reload()
	periodic.Call(ctx, keysPoll, f.reload)
	return nil
}

func (f *followed) reload() {
	before := f.Status()
	newest, err := f.source.Material()
	switch {
	case err != nil:
		f.status.Store(&keys.Status{Material: before.Material, Loaded: before.Loaded, Err: err})
		if before.Err == nil || before.Err.Error() != err.Error() {
			f.hooks.Refused(keys.Refusal{Problem: keys.ProblemOf(err)})
		}
	case newest != before.Material:
		f.status.Store(&keys.Status{Material: newest, Loaded: time.Now()})
		f.hooks.Reloaded(keys.Generation{NotBefore: newest.NotBefore, NotAfter: newest.NotAfter})
	case before.Err != nil:
		f.status.Store(&keys.Status{Material: newest, Loaded: before.Loaded})
	}
}
