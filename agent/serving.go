package agent

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/internal/connect"
)

// warnOfServing logs the faults for which API servers reject the certificate of the webhook. The
// chain is not checked: the agent does not know the caBundle of the webhook configuration.
func (k *keyMaterial) warnOfServing() {
	if !slices.Contains(k.uses, useServer) {
		return
	}
	leaf := k.Status().Material.Certificate.Leaf
	if faults := connect.ServingFaults(leaf); len(faults) > 0 {
		k.log.Warn("API servers reject the certificate of the webhook",
			slog.String("fault", strings.Join(faults, "; ")), slog.String("subject", leaf.Subject.String()))
	}
}
