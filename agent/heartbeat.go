package agent

import (
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// heartbeats makes the content of heartbeats. The steps of a builder set its functions before the
// outbox starts. Afterwards the lanes of the outbox call makeHeartbeat concurrently.
type heartbeats struct {
	opts Options
	keys keySet
	// problem returns why changes are not seen, or the configuration is not in use, "" for neither.
	problem func(core.Manager) string
	proof   *proof
	// canary is set before the first heartbeat is due.
	canary func() core.CanaryState
	// canaryProblem and webhooks are set then, too. They return why the canary cannot write, and
	// how the webhooks differ from those that were applied, "" if all is well.
	canaryProblem, webhooks func() string
	// calls counts the calls of makeHeartbeat that have ended: while the outbox works, about one a
	// second.
	calls atomic.Int64
}

// makeHeartbeat only reads memory, because forwarding to the manager waits for it.
func (p *heartbeats) makeHeartbeat(manager core.Manager) core.Heartbeat {
	defer p.calls.Add(1)

	heartbeat := core.Heartbeat{
		Instance:        p.opts.Instance,
		Version:         p.opts.Version,
		ConfigHash:      p.opts.ConfigHash,
		Canary:          p.canary(),
		CanaryError:     p.canaryProblem(),
		WebhookError:    p.webhooks(),
		LastReview:      p.proof.lastProof(manager),
		WebhookFailures: p.proof.failures.Load(),
		ConfigError:     p.problem(manager),
	}

	if p.keys.client != nil {
		material := p.keys.client.Status().Material
		heartbeat.CertificateFingerprint = material.Fingerprint
		heartbeat.CertificateExpiry = material.NotAfter
		heartbeat.CAFingerprints = material.RootFingerprints
	}

	// The first source is the source of the client, with which the agent connects to the control
	// plane.
	for _, set := range p.keys.allMaterials() {
		if err := set.Status().Err; err != nil {
			heartbeat.KeyMaterialError = set.joinedUses() + ": " + err.Error()
			break
		}
	}
	return heartbeat
}

func newEpoch() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails (crypto/rand).
	return hex.EncodeToString(id[:])
}
