package agent

import (
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// pulse makes the parts of a heartbeat that the outbox does not know.
type pulse struct {
	opts Options
	keys keySet
	// problem returns why changes for a manager are not seen, or why the configuration is not in
	// use. It is "" without a problem.
	problem func(core.Manager) string
	proof   *proof
	// canary is set before the first heartbeat is due.
	canary func() core.CanaryState
	// calls counts the calls of heartbeat that have ended: while the outbox works, about one a
	// second.
	calls atomic.Int64
}

// heartbeat only reads memory, because forwarding to the manager waits for it.
func (p *pulse) heartbeat(manager core.Manager) core.Heartbeat {
	defer p.calls.Add(1)
	beat := core.Heartbeat{
		Instance:        p.opts.Instance,
		Version:         p.opts.Version,
		ConfigHash:      p.opts.ConfigHash,
		Canary:          p.canary(),
		LastReview:      p.proof.of(manager),
		WebhookFailures: p.proof.failures.Load(),
		ConfigError:     p.problem(manager),
	}

	if p.keys.client != nil {
		material := p.keys.client.Status().Material
		beat.CertificateFingerprint = material.Fingerprint
		beat.CertificateExpiry = material.NotAfter
		beat.CAFingerprints = material.RootFingerprints
	}

	// The first is that of the client, with which the agent connects to the control plane.
	for _, set := range p.keys.all() {
		if err := set.Status().Err; err != nil {
			beat.KeyMaterialError = set.name() + ": " + err.Error()
			break
		}
	}
	return beat
}

// newEpoch returns 128 random bits.
func newEpoch() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails (crypto/rand).
	return hex.EncodeToString(id[:])
}
