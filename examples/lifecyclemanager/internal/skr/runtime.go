// Package skr connects the operator to its runtimes, and writes there.
package skr

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync/atomic"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
)

const (
	// FieldOwner owns the fields that the operator applies. It is also the value of
	// [ManagedByLabel].
	FieldOwner = "lifecycle-manager"
	// OnlyCreate is an annotation of objects that are left alone if they exist, such as the default
	// custom resource of a module. Such an object is created once, and then it is the user's.
	OnlyCreate = "operator.kyma-project.io/only-create"
	// Replace is an annotation of objects that may be deleted and created again when an immutable
	// field changes. Without it, the change is refused: a volume claim would lose its data.
	Replace = "operator.kyma-project.io/replace"
	// timeout bounds the wait of an apply.
	timeout = 15 * time.Second
	// batch is the number of objects that are compared before the first of them is written. A visit
	// that ends early has written all batches before, and the next visit only compares these.
	batch = 20
	// reads is the number of answers that one object of a module costs in a visit.
	reads = 5
)

// Runtime is a client for one runtime, without a cache.
type Runtime struct {
	client.Client

	// direct is the client of the connection. It also reads kinds that the scheme does not have.
	direct client.Client
	// controlPlane is read to decide whether the runtime is the control plane itself.
	controlPlane client.Reader
	state        *state
}

// state is kept for as long as the connection.
type state struct {
	local    atomic.Pointer[bool]
	prepared atomic.Bool
}

// Through returns the runtime with another client for it.
func (r *Runtime) Through(c client.Client) *Runtime {
	return &Runtime{Client: c, direct: r.direct, controlPlane: r.controlPlane, state: r.state}
}

// Cluster returns the UID of the Namespace kube-system, which identifies a cluster. Each call reads
// the UID again, because a new cluster may have the address of an earlier cluster.
func (r *Runtime) Cluster(ctx context.Context) (types.UID, error) { return clusterOf(ctx, r) }

// Local reports whether the runtime is the control plane itself. The answer of the first success is
// kept.
func (r *Runtime) Local(ctx context.Context) (bool, error) {
	if known := r.state.local.Load(); known != nil {
		return *known, nil
	}

	here, hereErr := clusterOf(ctx, r.controlPlane)
	there, thereErr := clusterOf(ctx, r)
	if err := errors.Join(hereErr, thereErr); err != nil {
		return false, err
	}

	same := here == there
	r.state.local.Store(&same)
	return same, nil
}

func clusterOf(ctx context.Context, cluster client.Reader) (types.UID, error) {
	namespace := &corev1.Namespace{}
	err := cluster.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace)
	return namespace.UID, err
}

// Unfinished means that a visit has applied some objects, and that its time is over. The next visit
// continues.
type Unfinished struct{ Done, Of int }

// Error implements [error].
func (u Unfinished) Error() string { return fmt.Sprintf("%d of %d objects are applied", u.Done, u.Of) }

// ApplyAll makes objects look as given, by server-side apply. Definitions and Namespaces come
// first. An object that looks so already is not written. ApplyAll labels and marks the objects,
// except a Namespace that existed before. Before the first write, it refuses objects of others by
// kind and name. The error is [Unfinished] if ctx ends between two batches.
func (r *Runtime) ApplyAll(ctx context.Context, owner Owner, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		remote.Allow(ctx, reads*remote.Weigh(object))
	}

	if err := r.claimAll(ctx, owner, objects); err != nil {
		return err
	}

	utils.SetCommonMetadata(objects, map[string]string{ManagedByLabel: FieldOwner}, nil)
	opts := ssa.DefaultApplyOptions()
	opts.ForceSelector = map[string]string{Replace: "true"}
	opts.IfNotPresentSelector = map[string]string{OnlyCreate: "true"}
	opts.WaitInterval = 100 * time.Millisecond
	opts.WaitTimeout = timeout

	sort.Sort(ssa.SortableUnstructureds(objects))
	for done := 0; done < len(objects); done += batch {
		next := objects[done:min(done+batch, len(objects))]
		_, err := r.newResourceManager().ApplyAllStaged(ctx, next, opts)
		if err != nil && ctx.Err() != nil && done > 0 {
			return Unfinished{Done: done, Of: len(objects)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) newResourceManager() *ssa.ResourceManager {
	poller := polling.NewStatusPoller(r, r.RESTMapper(), polling.Options{})
	manager := ssa.NewResourceManager(r, poller, ssa.Owner{Field: FieldOwner})
	manager.SetConcurrency(concurrent)
	return manager
}
