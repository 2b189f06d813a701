// Package installations has the states of the agents that a control plane installs. Package
// runtimes of the control plane exports them. They stand here, because the metrics and the status
// page show them, and neither may link the control plane.
package installations

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// All has the states of all agents that a control plane installs in runtimes. It is a copy.
type All struct {
	// Runtimes is the number of runtimes in each state.
	Runtimes map[State]int
	// Failed has the agents that cannot be installed or corrected.
	Failed []Failed
	// Repairs counts the reconciles that applied all objects of an agent, because the fleet found
	// that it does not watch.
	Repairs int64
	// NeverHeard are runtimes with an agent that answers, and that has sent nothing for a manager
	// since then.
	NeverHeard map[core.Manager][]core.RuntimeID
	// Phase is the phase of the CA's rotation, empty while it is not known.
	Phase Phase
	// Waiting are the runtimes that delay the rotation.
	Waiting []core.RuntimeID
	// Overdue are the runtimes with a certificate that should have been issued or renewed by now.
	Overdue []core.RuntimeID
}

// Failed is an object that represents a runtime, with the reason of its failure.
type Failed struct {
	Object  types.NamespacedName
	Runtime core.RuntimeID // empty while it is not known
	Reason  Reason
}

// State is a state, such as Ready, with its reason in CamelCase.
type State struct {
	State  Progress
	Reason Reason
}

// Progress is the progress of one installation. Package installation has the constants.
type Progress string

// Reason is why an installation has its state, in CamelCase. Packages installation and runtimes
// have the constants.
type Reason string

// Phase is the phase of a rotation. Package certificates has the constants.
type Phase string
