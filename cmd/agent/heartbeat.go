package main

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse makes what only the agent knows of a heartbeat.
type pulse struct {
	instance, version, configHash string
	keys                          keys
	// canary is set before the first heartbeat is due.
	canary *agentCanary
}

// heartbeat reads what is in memory only, as the outbox holds its lock meanwhile.
func (p *pulse) heartbeat(core.Manager) core.Heartbeat {
	status := p.keys.client.Status()
	beat := core.Heartbeat{
		Instance:               p.instance,
		Version:                p.version,
		ConfigHash:             p.configHash,
		CertificateFingerprint: status.Material.Fingerprint,
		CertificateExpiry:      status.Material.NotAfter,
		CAFingerprints:         status.Material.RootFingerprints,
		Canary:                 p.canary.state(),
	}

	// The first is the control plane's concern most of all: it is how the agent reaches it.
	for _, set := range p.keys.all() {
		if err := set.Status().Err; err != nil {
			beat.KeyMaterialError = set.name() + ": " + err.Error()

			break
		}
	}

	return beat
}

// newEpoch names one life of this process: 128 bits at random.
func newEpoch() string {
	var id [16]byte

	_, _ = rand.Read(id[:]) // Never fails (crypto/rand).

	return hex.EncodeToString(id[:])
}
