// Package skr connects the operator to its runtimes, and writes there.
package skr

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
)

const (
	// FieldOwner owns the fields that the operator applies. It is also the value of
	// [ManagedByLabel].
	FieldOwner = "lifecycle-manager"
	// ManagedByLabel is the label of everything that the operator applies in a runtime. Nothing
	// without it is deleted.
	ManagedByLabel = "operator.kyma-project.io/managed-by"
	// OnlyCreate is an annotation of objects that are left alone if they exist, such as the default
	// custom resource of a module. Such an object is created once, and then it is the user's.
	OnlyCreate = "operator.kyma-project.io/only-create"
	// Replace is an annotation of objects that may be deleted and created again when an immutable
	// field changes. Without it, the change is refused: a volume claim would lose its data.
	Replace = "operator.kyma-project.io/replace"
	// timeout bounds the wait of an apply.
	timeout = 15 * time.Second
)

// Runtime is a client for one runtime, without a cache.
type Runtime struct {
	client.Client

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
	return &Runtime{Client: c, controlPlane: r.controlPlane, state: r.state}
}

// Local reports whether the runtime is the control plane itself: the Namespace kube-system has the
// same UID in both, which identifies a cluster. The answer of the first success is kept.
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

// ApplyAll makes objects look as given, by server-side apply. Definitions and Namespaces come
// first. An object that looks so already is not written. ApplyAll labels the objects, except a
// Namespace that existed before. In the control plane it refuses to take over objects of others.
func (r *Runtime) ApplyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	local, err := r.Local(ctx)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := r.claim(ctx, object, local); err != nil {
			return err
		}
	}
	utils.SetCommonMetadata(objects, map[string]string{ManagedByLabel: FieldOwner}, nil)
	opts := ssa.DefaultApplyOptions()
	opts.ForceSelector = map[string]string{Replace: "true"}
	opts.IfNotPresentSelector = map[string]string{OnlyCreate: "true"}
	opts.WaitInterval, opts.WaitTimeout = 100*time.Millisecond, timeout
	_, err = r.resources().ApplyAllStaged(ctx, objects, opts)
	return err
}

// claim decides about an object that exists without the label of the operator.
func (r *Runtime) claim(ctx context.Context, object *unstructured.Unstructured, local bool) error {
	namespace := utils.IsNamespace(object)
	if !namespace && !local {
		return nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	err := r.Get(ctx, client.ObjectKeyFromObject(object), live)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return err
	case live.Labels[ManagedByLabel] == FieldOwner:
		return nil
	case namespace:
		utils.SetCommonMetadata([]*unstructured.Unstructured{object}, nil, map[string]string{OnlyCreate: "true"})
		return nil
	case object.GetAnnotations()[OnlyCreate] == "true":
		return nil
	default:
		return fmt.Errorf("%s %s exists in the control plane and is not of a module: want another name",
			object.GetKind(), client.ObjectKeyFromObject(object))
	}
}

// DeleteAll deletes objects that ApplyAll has made, in the opposite order, and returns those that
// are not gone yet. It does not wait. Call it again until none is left.
func (r *Runtime) DeleteAll(
	ctx context.Context, objects []*unstructured.Unstructured,
) (left []*unstructured.Unstructured, err error) {
	local, err := r.Local(ctx)
	if err != nil {
		return nil, err
	}
	sort.Sort(sort.Reverse(ssa.SortableUnstructureds(objects)))
	for _, object := range objects {
		if protects(object, local) {
			continue
		}
		gone, err := r.delete(ctx, object)
		if err != nil {
			return nil, err
		}
		if !gone {
			left = append(left, object)
		}
	}
	return left, nil
}

// protects reports whether no module may delete an object, because the Kyma or the operator needs
// it.
func protects(object *unstructured.Unstructured, local bool) bool {
	return utils.IsNamespace(object) && (local || object.GetName() == Namespace) ||
		utils.IsCRD(object) && strings.HasSuffix(object.GetName(), "."+v1beta2.GroupVersion().Group)
}

// delete reports whether the object is gone, or was never one of the operator.
func (r *Runtime) delete(ctx context.Context, object *unstructured.Unstructured) (gone bool, err error) {
	opts := ssa.DefaultDeleteOptions()
	opts.Inclusions = map[string]string{ManagedByLabel: FieldOwner}
	entry, err := r.resources().Delete(ctx, object, opts)
	if err == nil && entry.Action != ssa.SkippedAction {
		err = r.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopy())
	}
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) { // Without its definition it is gone, too.
		return true, nil
	}
	return err == nil && entry.Action == ssa.SkippedAction, err
}

func (r *Runtime) resources() *ssa.ResourceManager {
	poller := polling.NewStatusPoller(r, r.RESTMapper(), polling.Options{})
	return ssa.NewResourceManager(r, poller, ssa.Owner{Field: FieldOwner})
}
