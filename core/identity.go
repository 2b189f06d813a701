package core

import (
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/internal/dns1123"
)

// RuntimeID identifies one remote cluster. By default it is the Common Name of the cluster's client
// certificate. It is opaque: compare it, but never parse it.
type RuntimeID string

// Manager names the operator that gets the events of a watch. It is one URL segment and a DNS-1123
// label (RFC 1123, section 2.1, as Kubernetes narrows it). Use only [ParseManager] to build a
// Manager from untrusted input.
type Manager string

// ParseManager returns name as a [Manager]. The error is permanent, with the reason
// invalid_manager, if name is not a DNS-1123 label: 1 to 63 of the characters a-z, 0-9 and '-',
// without a '-' at either end.
func ParseManager(name string) (Manager, error) {
	if dns1123.IsLabel(name) {
		return Manager(name), nil
	}
	return "", fmt.Errorf("%w: %s", errInvalidManager, shorten(name))
}

// shorten quotes foreign input for an error message: it must neither flood a log nor forge a line.
func shorten(input string) string {
	if len(input) <= dns1123.MaxLabel {
		return fmt.Sprintf("%q", input)
	}
	return fmt.Sprintf("%q… (%d bytes)", input[:dns1123.MaxLabel], len(input))
}
