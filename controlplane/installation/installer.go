package installation

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Installer installs the agent. Create it with [New]. Calls for different runtimes may run
// concurrently. Calls for the same runtime must not.
type Installer struct {
	// New sets these, and nothing changes them.
	image        string
	controlPlane string
	opts         Options
	manifests    manifests

	// These are for concurrent use.
	memory  memory
	budgets budgets
}

// Parts are the required arguments of [New].
type Parts struct {
	// Image is the image of the agent. Required.
	Image string
	// ControlPlane is the address <host>:<port> to which the agents send. It may be empty if each
	// [Runtime] has an address and [Options].Owner is set.
	ControlPlane string
}

// New returns an installer. An error names every invalid parameter.
func New(parts Parts, opts Options) (*Installer, error) {
	webhooks := opts.Webhooks
	opts = opts.withDefaults()
	if err := errors.Join(parts.validate(opts.Owner), validateWebhooks(webhooks), opts.validate()); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}

	return &Installer{
		image: parts.Image, controlPlane: parts.ControlPlane, opts: opts,
		manifests: newManifests(opts.Namespace, opts.Name, opts.ConfigurationName),
		budgets:   newBudgets(),
	}, nil
}

// validate needs the owner of the options, which is by default the address.
func (p Parts) validate(owner string) error {
	noImage := option.Unless(p.Image != "", "Parts.Image: want the image of the agent, have none")
	if p.ControlPlane != "" {
		_, err := parsePort(p.ControlPlane)
		return errors.Join(noImage, err)
	}

	noAddress := option.Unless(owner != "", "Parts.ControlPlane, or Owner: want one of them, have none")
	return errors.Join(noImage, noAddress)
}

// Names returns [Options].Names with the defaults filled in.
func (i *Installer) Names() names.Names { return i.opts.Names }

// Managers returns the sorted managers to which the agents of a runtime send: the managers of the
// watches, and the managers in the setting MANAGERS of [Options].Settings.
func (i *Installer) Managers(watches []watch.Watch) []core.Manager { return i.opts.managersOf(watches) }

// Agents returns the Service of the agents, for which their serving certificates must be valid, and
// whether the agents send heartbeats, which requires contract v3. With [Options].Informer, the
// Service is empty.
func (i *Installer) Agents() (service types.NamespacedName, heartbeats bool) {
	contract, isSet := i.opts.settings().contract()
	return i.opts.service(), !isSet || contract == contractV3
}

// rendererOf makes the renderer of a runtime, which has a namespace of others until the visit has
// read it.
func (i *Installer) rendererOf(r *Runtime) *renderer {
	return &renderer{
		marks: i.makeMarks(), opts: &i.opts, manifests: i.manifests, image: i.image,
		runtime: r, address: i.addressFor(r),
	}
}

func (i *Installer) makeMarks() marks {
	return marks{
		names: i.opts.Names, owner: cmp.Or(i.opts.Owner, i.controlPlane),
		former: i.opts.FormerOwners, adopt: i.opts.Adopt,
	}
}

// addressFor returns an address that is not valid as it is, so that the error has it.
func (i *Installer) addressFor(r *Runtime) string {
	address := cmp.Or(r.ControlPlane, i.controlPlane)
	normal, _, err := parseAddress(address)
	if err != nil {
		return address
	}
	return normal
}
