// Package installations contains the types for the states of the agents that a control plane
// installs. Package runtimes of the control plane exports these types. They are declared here
// because the metrics and the status page use them without linking the control plane.
package installations

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// All contains the states of all agents that a control plane installs in runtimes. It is a copy.
type All struct {
	// Runtimes is the number of runtimes in each state.
	Runtimes map[State]int
	// Failed lists the agents that cannot be installed or corrected.
	Failed []Failed
	// Repairs counts the reconciles that applied all objects of an agent because the fleet found
	// that the agent does not watch.
	Repairs int64
	// NeverHeard lists, for each manager, the runtimes with an agent that answers and has not sent
	// anything for the manager yet.
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

// Progress is the progress of one installation. Package installation declares the constants.
type Progress string

// Reason is why an installation has its state, in CamelCase. Packages installation and runtimes
// declare the constants.
type Reason string

// Phase is the phase of a rotation. Package certificates declares the constants.
type Phase string
