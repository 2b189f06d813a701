package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Installer installs the agent. Create it with [New]. Its methods may be called concurrently,
// except for one runtime.
type Installer struct {
	image        string
	controlPlane string
	opts         Options
	manifests    map[string]*unstructured.Unstructured // by path, never changed
	looks        sync.Map                              // of the last look at each runtime, by its ID
	restarts     sync.Map                              // of the last restart after a correction, by the same ID
	budgets      *remote.Budgets
}

// New returns an installer of an image of the agent. The agents send to the control plane at
// <host>:<port>, which may be empty if each [Runtime] has an address. An error names every invalid
// parameter.
func New(image, controlPlane string, opts Options) (*Installer, error) {
	opts = opts.withDefaults()
	problem := option.Unless(controlPlane+opts.Owner != "",
		"address of the control plane, or Owner: want one of them, have none")
	if controlPlane != "" {
		_, problem = parsePort(controlPlane)
	}
	noImage := option.Unless(image != "", "image of the agent: want one, have none")
	if err := errors.Join(noImage, problem, opts.validate()); err != nil {
		return nil, fmt.Errorf("installation: %w", err)
	}
	return &Installer{
		image: image, controlPlane: controlPlane, opts: opts, manifests: opts.manifests(), budgets: remote.NewBudgets(),
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
// Deployment. It corrects the first two at once, and all others after 1 h.
//
// Beside an error only [Status.Former] is set. A permanent error, by core.IsPermanent, needs
// another Runtime: its reason is invalid_runtime, invalid_watch or invalid_configuration. An error
// with the reason owned needs the end of the other installation. Retry all others.
//
// With a client of runtimes.NewKubeconfigs, a call takes at most 64 MiB for any answers of the
// runtime. Texts from the runtime are cut.
func (i *Installer) Install(ctx context.Context, r Runtime) (Status, error) {
	ctx, end := i.budgets.Begin(ctx)
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
	ctx, end := i.budgets.Begin(ctx)
	defer end()
	status, unchanged, err = i.glance(ctx, i.cluster(&r), &r)
	status, err = bounded(status, err)
	return status, unchanged, err
}

func bounded(status Status, err error) (Status, error) {
	status.Message = remote.Text(status.Message)
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
	in := i.cluster(&r)
	status, unchanged, err := i.glance(ctx, in, &r)
	if unchanged || err != nil {
		return status, err
	}
	return i.correct(ctx, in, &r, i.outdate(r.ID))
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
	contract, set := i.opts.Settings[settingContract]
	return service, !set || contract == "v3"
}

func (i *Installer) addressFor(r *Runtime) string { return cmp.Or(r.ControlPlane, i.controlPlane) }

func (i *Installer) host() string { return i.opts.Name + "." + i.opts.Namespace + ".svc" }

func (i *Installer) cluster(r *Runtime) *cluster {
	return &cluster{
		Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID))),
	}
}

// existing are the objects that decide about the others, nil where there is none.
type existing struct {
	namespace, configuration, managers, role *unstructured.Unstructured
}

func (e existing) namespaceEnds() bool {
	return e.namespace != nil && e.namespace.GetDeletionTimestamp() != nil
}

// read reads one object first, which opens the connection that all further requests share.
func (i *Installer) read(ctx context.Context, in *cluster) (existing, error) {
	var found existing
	if err := in.getInto(ctx, i.bareConfiguration(), &found.configuration)(); err != nil {
		return existing{}, err
	}
	err := together(
		in.getInto(ctx, i.namespace(), &found.namespace),
		in.getInto(ctx, i.managersMap(&Runtime{}, ""), &found.managers),
		in.getInto(ctx, i.object(roleFile), &found.role),
	)
	return found, err
}

// correct applies all objects, in an order in which no write of the runtime waits for an agent.
func (i *Installer) correct(ctx context.Context, in *cluster, r *Runtime, last look) (Status, error) {
	found, err := i.read(ctx, in)
	if err != nil {
		return Status{}, err
	}
	if err := i.checkOwner(in, found.configuration, found.managers, found.role); err != nil {
		return Status{}, err
	}
	if r.PullSecret == nil { // Before the ConfigMap loses the annotation.
		if err := in.removeAll(ctx, i.formerPullSecret(found.managers)); err != nil {
			return Status{}, err
		}
	}
	former := i.formerManagers(r, found.managers)
	want, err := i.plan(ctx, in, r, found, former, last)
	if err != nil {
		return Status{}, err
	}
	install := i.installWebhook
	if i.opts.Informer {
		install = i.installInformer
	}
	var status Status
	if err = i.begin(ctx, in, found, want); err == nil {
		status, err = install(ctx, in, found, want)
	}
	if err != nil { // A write may have been done nevertheless.
		status = Status{}
	}
	status.Former = former
	return status, err
}

// plan returns the objects to apply. If others have changed webhooks, the agents restart. former
// are the managers that the ConfigMap loses.
func (i *Installer) plan(
	ctx context.Context, in *cluster, r *Runtime, found existing, former []core.Manager, last look,
) (*wanted, error) {
	ownNamespace := i.ours(cmp.Or(found.namespace, i.namespace()))
	want, err := i.wanted(r, ownNamespace)
	if err != nil {
		return nil, err
	}
	// If the last complete installation had the same configuration, and the present one differs,
	// then others have replaced it, as by an older copy with the annotation of its time.
	intact, live := last.whole == want.seen.whole, found.configuration
	if !intact {
		i.looks.Delete(r.ID)
	}
	stale := former
	want.whole = live != nil && !i.opts.Informer && (intact || live.GetAnnotations()[i.key(annotationWhole)] == want.seen.whole)
	if want.whole {
		corrected, err := in.put(ctx, live, want.configuration, client.DryRunAll)
		if err != nil {
			return nil, err
		}
		if want.missed = missed(live, corrected, want.configuration); want.missed {
			in.log.WarnContext(ctx, "others have changed webhooks, so agents restart after the correction")
			stale = i.Managers(r.Watches)
		}
	}
	due := i.restart(found.managers, stale)
	pods := i.paced(r.ID, due, len(former) > 0, want.missed)
	want.waits = pods != due
	want.add(i, r, ownNamespace, due, pods)
	return want, nil
}

// begin creates the namespace and claims the runtime. No object can be created in a namespace that
// ends.
func (i *Installer) begin(ctx context.Context, in *cluster, found existing, want *wanted) error {
	if found.namespace == nil {
		// Create, not apply: an apply would take over a namespace that appeared since the read.
		err := in.Create(ctx, i.namespace(), client.FieldOwner(fieldOwner))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return in.wrap(err, "create Namespace", i.opts.Namespace)
		}
	}
	var err error
	if !found.namespaceEnds() {
		err = i.claim(ctx, in, want.managers, found.managers)
	}
	if err == nil && want.missed { // After the correction, nothing else shows that the restart is due.
		_, err = in.apply(ctx, want.managers)
	}
	return err
}

// installWebhook installs agents that the API server calls. The role is that of agents that
// watched until now. Former replicas may be such agents, and serve no webhook.
func (i *Installer) installWebhook(ctx context.Context, in *cluster, found existing, want *wanted) (Status, error) {
	configuration, err := i.renewConfiguration(ctx, in, found.configuration, want)
	if err != nil {
		return Status{}, err
	}
	live, status, err := i.installAgent(ctx, in, found, want)
	if err != nil || status.State != Ready && (found.role != nil || !status.formerServe()) {
		return status, err
	}
	if found.role != nil {
		_, err = in.remove(ctx, i.removable(partInformer)...)
	}
	if err == nil && !want.whole {
		configuration, err = in.put(ctx, configuration, want.configuration)
	}
	if err != nil || status.State != Ready {
		return status, err
	}
	if want.waits {
		status.State, status.Reason = Failed, reasonWebhooksContested
		status.Message = "others change webhooks again and again, so agents restart once in an hour at most"
		return status, nil
	}
	return i.complete(ctx, in, status, want, configuration, live)
}

// installInformer installs agents that watch. The webhook configuration goes first, because these
// agents do not answer. The resync of their start stands in for the changes in between.
func (i *Installer) installInformer(ctx context.Context, in *cluster, found existing, want *wanted) (Status, error) {
	if found.configuration != nil {
		held, err := in.remove(ctx, i.bareConfiguration())
		if err != nil || len(held) > 0 {
			return awaitingEndOf(held), err
		}
	}
	live, status, err := i.installAgent(ctx, in, found, want)
	if err != nil || status.State != Ready {
		return status, err
	}
	return i.complete(ctx, in, status, want, found.role, live)
}

func (i *Installer) installAgent(
	ctx context.Context, in *cluster, found existing, want *wanted,
) (agents, Status, error) {
	if found.namespaceEnds() {
		return agents{}, progressing(reasonNamespaceEnding, "waiting for the end of Namespace "+i.opts.Namespace), nil
	}
	live, err := i.applyObjects(ctx, in, found, want)
	if err != nil {
		return agents{}, Status{}, err
	}
	status, err := i.judge(in, live)
	return live, status, err
}

// complete removes the objects of the canary after it was turned off.
func (i *Installer) complete(
	ctx context.Context, in *cluster, status Status, want *wanted, marker *unstructured.Unstructured, live agents,
) (Status, error) {
	if i.opts.NoCanary {
		if err := in.removeAll(ctx, i.removable(partCanary)); err != nil {
			return Status{}, err
		}
	}
	status, err := i.replace(ctx, in, status)
	if err == nil && status.State == Ready {
		seen := want.seen
		seen.at, seen.marker, seen.deployment = i.opts.Now(), markOf(marker), markOf(live.deployment)
		i.looks.Store(in.id, seen)
	}
	return status, err
}

// applyObjects applies the early objects before the late ones, as the pods cannot start without the
// Secret.
func (i *Installer) applyObjects(
	ctx context.Context, in *cluster, found existing, want *wanted,
) (live agents, err error) {
	if err := in.applyAll(ctx, want.early); err != nil {
		return agents{}, err
	}
	err = together(
		func() error { return in.applyAll(ctx, want.late) },
		func() (err error) { live.deployment, err = in.apply(ctx, want.deployment); return err },
		i.slicesInto(ctx, in, &live.slices),
		func() (err error) {
			if i.ours(found.namespace) { // It is never replaced, as it may hold objects of others.
				_, err = in.tryApply(ctx, i.namespace())
			}
			return err
		})
	return live, err
}
