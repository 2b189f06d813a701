package fleet

import "github.com/runtime-watcher/runtime-watcher/core"

// Installations has the states of the agents that a control plane installs in runtimes. It is a
// copy.
type Installations struct {
	// Runtimes is the number of runtimes in each state.
	Runtimes map[InstallationState]int
	// Failed are the runtimes with an agent that cannot be installed or corrected, by reason. The
	// name of an object, <namespace>/<name>, stands in for a runtime that is not known.
	Failed map[string][]core.RuntimeID
	// NeverHeard are runtimes with an agent that answers, and that has sent nothing for a manager
	// since then.
	NeverHeard map[core.Manager][]core.RuntimeID
	// Phase is the phase of the CA's rotation, empty while it is not known.
	Phase string
	// Waiting are the runtimes that delay the rotation.
	Waiting []core.RuntimeID
	// Overdue are the runtimes with a certificate that should have been issued or renewed by now.
	Overdue []core.RuntimeID
}

// InstallationState is a state, such as Ready, with its reason in CamelCase.
type InstallationState struct{ State, Reason string }
