package agent

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus/watchermetrics"
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

func (k keySet) allMaterials() []*keyMaterial {
	var sets []*keyMaterial
	for _, set := range []*keyMaterial{k.client, k.serving, k.callers} {
		if set != nil && !slices.Contains(sets, set) {
			sets = append(sets, set)
		}
	}
	return sets
}

func (k *keyMaterial) joinedUses() string { return strings.Join(k.uses, ",") }

func (k *keyMaterial) noteReload(keys.Generation) {
	for _, use := range k.uses {
		k.metrics.KeyMaterial(use).Reloaded(k.validity(use))
	}
	k.measureExpiry()
	k.warnOfServing()
	k.renewed()
}

func (k *keyMaterial) noteRefusal(refusal keys.Refusal) {
	for _, use := range k.uses {
		k.metrics.KeyMaterial(use).Refused(refusal)
	}
}

func (k *keyMaterial) measureExpiry() {
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
