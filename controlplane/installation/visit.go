package installation

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/ownership"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// visit is one call of the installer for one runtime: the present objects, the planned ones, and
// the last record. It belongs to the goroutine of that call, and its tasks in parallel read it
// only.
type visit struct {
	*Installer
	*cluster

	runtime *Runtime
	last    record // of the last complete installation, the zero value if there is none
	found   found
	want    *wanted // nil until render
	// former are the managers that the ConfigMap has, and the runtime does not have any more.
	former []core.Manager
}

// found are the objects in the runtime, as this visit has read them, nil where there is none.
type found struct {
	// The first four decide about the others: which installer owns it, and which parts it lacks.
	namespace, configuration, managers, role *unstructured.Unstructured
	// others has the metadata of the objects that this visit applies, beside the four.
	others map[identity]*metav1.PartialObjectMetadata
}

// identity distinguishes the objects of one installation: all are in one namespace, or in none.
type identity struct{ kind, name string }

func identityOf(object client.Object) identity {
	return identity{object.GetObjectKind().GroupVersionKind().Kind, object.GetName()}
}

// whole returns the object with that name, if it is one of the four that were read with their
// content.
func (f *found) whole(object client.Object) *unstructured.Unstructured {
	for _, live := range []*unstructured.Unstructured{f.namespace, f.configuration, f.managers, f.role} {
		if live != nil && identityOf(live) == identityOf(object) {
			return live
		}
	}
	return nil
}

// live returns the object with that name as this visit has read it, nil if there was none.
func (f *found) live(object client.Object) client.Object {
	if whole := f.whole(object); whole != nil {
		return whole
	}
	metadata := f.others[identityOf(object)]
	if metadata == nil {
		return nil // And no interface with a nil in it.
	}
	return metadata
}

// deciding are the objects that decide which installer owns the runtime. An existing namespace may
// be foreign.
func (f *found) deciding() (objects []client.Object) {
	for _, live := range []*unstructured.Unstructured{f.configuration, f.managers, f.role} {
		if live != nil {
			objects = append(objects, live)
		}
	}
	return objects
}

// beside are the objects beside the deciding ones, sorted by kind and name.
func (f *found) beside() (objects []client.Object) {
	for _, live := range f.others {
		objects = append(objects, live)
	}
	slices.SortFunc(objects, func(a, b client.Object) int {
		x, y := identityOf(a), identityOf(b)
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(x.name, y.name))
	})
	return objects
}

func (i *Installer) visit(r *Runtime) *visit {
	in := &cluster{
		Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID))),
	}
	return &visit{Installer: i, cluster: in, runtime: r}
}

// correct applies all objects, in an order in which no write of the runtime waits for an agent.
// Nothing is written before each object was found to be of this installer.
func (v *visit) correct(ctx context.Context) (Status, error) {
	if err := v.read(ctx); err != nil {
		return Status{}, err
	}
	if err := v.checkOwners(v.found.deciding()); err != nil {
		return Status{}, err
	}

	v.former = v.formerManagers(v.runtime, v.found.managers)
	if err := v.render(ctx); err != nil {
		return Status{}, err
	}
	if err := v.readOthers(ctx); err != nil {
		return Status{}, err
	}
	if err := v.checkOwners(v.found.beside()); err != nil {
		return Status{}, err
	}

	status, err := v.carryOut(ctx)
	if err != nil { // A write may have been done nevertheless.
		status = Status{}
	}
	status.Former = v.former
	return status, err
}

// read reads one object first, which opens the connection that all further requests share.
func (v *visit) read(ctx context.Context) error {
	if err := v.getInto(ctx, v.bareConfiguration(), &v.found.configuration)(); err != nil {
		return err
	}
	return together(
		v.getInto(ctx, v.namespace(), &v.found.namespace),
		v.getInto(ctx, v.managersMap(&Runtime{}, ""), &v.found.managers),
		v.getInto(ctx, v.object(roleFile), &v.found.role),
	)
}

// readOthers reads the metadata of the planned objects. Their content may be foreign, and does not
// matter.
func (v *visit) readOthers(ctx context.Context) error {
	objects := v.want.applied()
	read := make([]*metav1.PartialObjectMetadata, len(objects))
	tasks := make([]func() error, len(objects))
	for n, object := range objects {
		tasks[n] = func() (err error) {
			if v.found.whole(object) == nil {
				read[n], err = v.metadata(ctx, object)
			}
			return err
		}
	}
	if err := together(tasks...); err != nil {
		return err
	}

	v.found.others = make(map[identity]*metav1.PartialObjectMetadata)
	for n, object := range objects {
		if read[n] != nil {
			v.found.others[identityOf(object)] = read[n]
		}
	}
	return nil
}

// render makes the objects to apply. If others have changed webhooks, the agents restart.
func (v *visit) render(ctx context.Context) error {
	ownNamespace := v.found.namespace == nil && v.ours(v.namespace()) || v.ownsNamespace()
	want, err := v.wanted(v.runtime, ownNamespace)
	if err != nil {
		return err
	}
	v.want = want

	if err := v.compareConfiguration(ctx); err != nil {
		return err
	}
	stale := v.former
	if want.missed {
		v.log.WarnContext(ctx, "another program changed the webhooks, so the agents restart after the correction")
		stale = v.Managers(v.runtime.Watches)
	}

	due := v.restart(v.found.managers, stale)
	pods := v.pace(v.id, due, len(v.former) > 0, want.missed)
	want.waits = pods != due
	want.add(v.Installer, v.runtime, ownNamespace, due, pods)
	return nil
}

func (v *visit) carryOut(ctx context.Context) (Status, error) {
	if v.runtime.PullSecret == nil { // Before the ConfigMap loses the annotation.
		if err := v.removeAll(ctx, v.formerPullSecret(v.found.managers)); err != nil {
			return Status{}, err
		}
	}
	if err := v.begin(ctx); err != nil {
		return Status{}, err
	}
	if v.opts.Informer {
		return v.installInformer(ctx)
	}
	return v.installWebhook(ctx)
}

// begin creates the namespace and claims the runtime. No object can be created in a namespace that
// ends.
func (v *visit) begin(ctx context.Context) error {
	if v.found.namespace == nil {
		// Create, not apply: an apply would take over a namespace that appeared since the read.
		err := v.Create(ctx, v.namespace(), client.FieldOwner(fieldOwner))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return v.wrap(err, "create Namespace", v.opts.Namespace)
		}
	}
	if !v.found.namespaceEnds() {
		if err := v.claim(ctx); err != nil {
			return err
		}
		if err := v.claimRole(ctx); err != nil {
			return err
		}
	}
	if !v.want.missed {
		return nil
	}
	// After the correction, nothing else shows that the restart is due.
	_, err := v.apply(ctx, v.want.managers)
	return err
}

func (f *found) namespaceEnds() bool {
	return f.namespace != nil && f.namespace.GetDeletionTimestamp() != nil
}

// installWebhook installs agents that the API server calls. The role is that of agents that
// watched until now. Former replicas may be such agents, and serve no webhook.
func (v *visit) installWebhook(ctx context.Context) (Status, error) {
	configuration, err := v.renewConfiguration(ctx)
	if err != nil {
		return Status{}, err
	}
	live, status, err := v.installAgent(ctx)
	if err != nil {
		return status, err
	}
	formerServe := v.found.role == nil && status.formerServe()
	if status.State != Ready && !formerServe {
		return status, nil
	}

	if v.found.role != nil {
		if _, err := v.remove(ctx, v.removable(partInformer)...); err != nil {
			return status, err
		}
	}
	if !v.want.whole {
		if configuration, err = v.putConfiguration(ctx, configuration, v.want.configuration); err != nil {
			return status, err
		}
	}
	if status.State != Ready {
		return status, nil
	}
	if v.want.waits {
		status.State, status.Reason = Failed, ReasonWebhooksContested
		status.Message = "another program repeatedly changes the webhooks, so the agents restart at most once an hour"
		return status, nil
	}
	return v.complete(ctx, status, configuration, live)
}

// installInformer installs agents that watch. The webhook configuration goes first, because these
// agents do not answer. The resync of their start replaces the changes in between.
func (v *visit) installInformer(ctx context.Context) (Status, error) {
	if v.found.configuration != nil {
		held, err := v.remove(ctx, v.bareConfiguration())
		if err != nil || len(held) > 0 {
			return awaitingEndOf(held), err
		}
	}
	live, status, err := v.installAgent(ctx)
	if err != nil || status.State != Ready {
		return status, err
	}
	return v.complete(ctx, status, v.found.role, live)
}

func (v *visit) installAgent(ctx context.Context) (agents, Status, error) {
	if v.found.namespaceEnds() {
		return agents{}, progressing(ReasonNamespaceEnding, "waiting for the end of Namespace "+v.opts.Namespace), nil
	}
	live, err := v.applyObjects(ctx)
	if err != nil {
		return agents{}, Status{}, err
	}
	status, err := v.judge(live)
	return live, status, err
}

// applyObjects applies the early objects before the late ones, as the pods cannot start without the
// Secret.
func (v *visit) applyObjects(ctx context.Context) (live agents, err error) {
	if err := v.applyAll(ctx, v.want.early); err != nil {
		return agents{}, err
	}
	err = together(
		func() error { return v.applyAll(ctx, v.want.late) },
		func() (err error) { live.deployment, err = v.apply(ctx, v.want.deployment); return err },
		v.slicesInto(ctx, &live.slices),
		func() error { return v.applyNamespace(ctx) })
	return live, err
}

// applyNamespace corrects a namespace of ours. It is never replaced, as it may hold objects of
// others.
func (v *visit) applyNamespace(ctx context.Context) error {
	if !v.ownsNamespace() {
		return nil
	}
	_, err := ownership.Apply(ctx, v, v.namespace(), v.found.namespace, fieldOwner)
	return v.wrap(err, "correct Namespace", v.opts.Namespace)
}

// complete removes the objects of the canary after it was turned off, and those of a former agent.
// marker is the object that shows in the next visit that nothing has changed.
func (v *visit) complete(
	ctx context.Context, status Status, marker *unstructured.Unstructured, live agents,
) (Status, error) {
	if v.opts.NoCanary {
		if err := v.removeAll(ctx, v.removable(partCanary)); err != nil {
			return Status{}, err
		}
	}
	status, err := v.replaceFormer(ctx, status)
	if err != nil || status.State != Ready {
		return status, err
	}

	seen := v.want.seen
	seen.at = v.opts.Now()
	seen.marker = versionOf(marker)
	seen.deployment = versionOf(live.deployment)
	seen.exclusions = v.want.exclusions
	v.records.Store(v.id, seen)
	return seen.exclusions.judge(status), nil
}
