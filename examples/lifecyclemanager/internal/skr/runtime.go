package skr

import (
	"context"
	"sort"
	"sync/atomic"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// FieldOwner owns the fields that the operator applies. It is also the value of
	// [ManagedByLabel].
	FieldOwner = "lifecycle-manager"
	// ManagedByLabel is the label of everything that the operator applies in a runtime. Nothing
	// without it is deleted.
	ManagedByLabel = "operator.kyma-project.io/managed-by"
	// onlyCreate is an annotation of objects that are left alone if they exist.
	onlyCreate = "operator.kyma-project.io/only-create"
	// timeout bounds the wait of an apply.
	timeout = 15 * time.Second
)

// Runtime is a client for one runtime, without a cache.
type Runtime struct {
	client.Client

	prepared atomic.Bool
}

// ApplyAll makes objects look as given, by server-side apply. Definitions and Namespaces come
// first. An object that looks so already is not written. ApplyAll labels the objects.
func (r *Runtime) ApplyAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		setLabel(object, ManagedByLabel, FieldOwner)
	}
	opts := ssa.DefaultApplyOptions()
	opts.Force = true // An immutable field, such as the selector of a Deployment, replaces the object.
	opts.IfNotPresentSelector = map[string]string{onlyCreate: "true"}
	opts.WaitInterval, opts.WaitTimeout = 100*time.Millisecond, timeout
	_, err := r.resources().ApplyAllStaged(ctx, objects, opts)
	return err
}

// DeleteAll deletes objects that ApplyAll has made, in the opposite order, and returns those that
// are not gone yet. It does not wait. Call it again until none is left.
func (r *Runtime) DeleteAll(
	ctx context.Context, objects []*unstructured.Unstructured,
) (left []*unstructured.Unstructured, err error) {
	sort.Sort(sort.Reverse(ssa.SortableUnstructureds(objects)))
	for _, object := range objects {
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

func setLabel(object *unstructured.Unstructured, key, value string) {
	labels := object.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[key] = value
	object.SetLabels(labels)
}
