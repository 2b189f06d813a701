package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Installer installs the agent. Create it with [New]. Its methods may be called concurrently,
// except for one runtime.
type Installer struct {
	image        string
	controlPlane string
	opts         Options
	manifests    map[string]*unstructured.Unstructured // by path, never changed
	records      sync.Map                              // a record for each runtime, by its ID
	restarts     sync.Map                              // a restarted for each runtime, by its ID
	contests     sync.Map                              // texts of exclusions that were removed once, by the ID
	budgets      budgets
}

// Parts are the required arguments of [New].
type Parts struct {
	// Image is the image of the agent. Required.
	Image string
	// ControlPlane is <host>:<port>, which the agents send to. It may be empty if each [Runtime]
	// has an address, and [Options].Owner is set.
	ControlPlane string
}

// New returns an installer. An error names every invalid parameter.
func New(parts Parts, opts Options) (*Installer, error) {
	webhooks := opts.Webhooks
	opts = opts.withDefaults()
	problem := option.Unless(parts.ControlPlane+opts.Owner != "",
		"Parts.ControlPlane, or Owner: want one of them, have none")
	if parts.ControlPlane != "" {
		_, problem = parsePort(parts.ControlPlane)
	}
	noImage := option.Unless(parts.Image != "", "Parts.Image: want the image of the agent, have none")
	if err := errors.Join(noImage, problem, validateWebhooks(webhooks), opts.validate()); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}
	return &Installer{
		image: parts.Image, controlPlane: parts.ControlPlane, opts: opts, manifests: opts.manifests(), budgets: newBudgets(),
	}, nil
}

// Install does the next steps of an installation, without waiting, and corrects changes by others.
// Call it again while the state is not [Ready], and from time to time after that.
//
// The webhook configuration comes last, when the agent answers. When a rollout is stalled, a former
// replica that answers is enough. An existing configuration gets a new bundle before the agent gets
// a new certificate. A new Secret restarts nothing, and neither does a new manager. With
// [Options.Informer], an existing configuration is removed first.
//
// A call that has nothing new reads three objects: the webhook configuration, the Deployment and
// the endpoints of the Service. With [Options.Informer] it reads two: the ClusterRole and the
// Deployment. It corrects the first two immediately, and all others after 1 h.
//
// Install changes only objects with its mark, which is the annotation with [Options.Owner]. If an
// object of its names exists without the mark, Install changes nothing, and the error names the
// object. [Options.FormerOwners] and [Options.Adopt] take such objects over.
//
// Beside an error only [Status.Former] is set. A permanent error, by core.IsPermanent, needs
// another Runtime: its reason is invalid_runtime, invalid_watch or invalid_configuration. An error
// with the reason owned needs the end of the other installation, or an adoption. Retry all other
// errors.
//
// With a client of runtimes.NewKubeconfigs, a call takes at most 64 MiB for any answers of the
// runtime. Texts from the runtime are cut.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	ctx, end := i.beginCall(ctx, &r)
	defer end()
	return bounded(i.install(ctx, r))
}

// Unchanged reports whether a call of Install with the Secret of the last one would change nothing.
// The status is that of such a call. It needs no Secret, and reads the same objects as a call of
// Install that has nothing new. If it returns false, call Install.
func (i *Installer) Unchanged(ctx context.Context, r Runtime) (status Status, unchanged bool, err error) {
	if r.Client == nil || r.Verify {
		return Status{}, false, nil
	}
	r.Secret = nil
	ctx, end := i.beginCall(ctx, &r)
	defer end()
	status, unchanged, err = i.visit(&r).checkUnchanged(ctx)
	status, err = bounded(status, err)
	return status, unchanged, err
}

func bounded(status Status, err error) (Status, error) {
	status.Message = remote.Text(status.Message)
	status.Notice = remote.Text(status.Notice)
	return status, remote.Error(err)
}

func (i *Installer) install(ctx context.Context, r Runtime) (Status, error) {
	if r.Verify {
		i.outdate(r.ID) // Even if this call fails.
	}
	err := r.validate(i.host(), !i.opts.Informer, i.opts.overNATS())
	if err == nil {
		_, err = parsePort(i.addressFor(&r))
	}
	if err != nil {
		return Status{}, fmt.Errorf("%w %q: %w", errInvalidRuntime, r.ID, err)
	}
	v := i.visit(&r)
	status, unchanged, err := v.checkUnchanged(ctx)
	if unchanged || err != nil {
		return status, err
	}
	v.last = i.outdate(r.ID)
	return v.correct(ctx)
}

// Names returns the names of [Options], with their defaults.
func (i *Installer) Names() names.Names { return i.opts.Names }

// Agents returns the Service of the agents, which is a name in their serving certificates, and
// whether they send heartbeats, which needs contract v3. The Service is empty with
// [Options.Informer].
func (i *Installer) Agents() (service types.NamespacedName, heartbeats bool) {
	if !i.opts.Informer {
		service = types.NamespacedName{Namespace: i.opts.Namespace, Name: i.opts.Name}
	}
	contract, set := i.opts.contract()
	return service, !set || contract == "v3"
}

// addressFor returns an address that is not valid as it is, so that the error has it.
func (i *Installer) addressFor(r *Runtime) string {
	address := cmp.Or(r.ControlPlane, i.controlPlane)
	if normal, _, err := parseAddress(address); err == nil {
		return normal
	}
	return address
}

func (i *Installer) host() string { return i.opts.Name + "." + i.opts.Namespace + ".svc" }
