package skr

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// ManagedByLabel is the label of each object that the operator applies in a runtime. Nothing
	// without it is deleted.
	ManagedByLabel = "operator.kyma-project.io/managed-by"
	// ModuleMark is the annotation with the owner of an object: the name of a module.
	ModuleMark = "operator.kyma-project.io/module"
	// AdoptBy is an annotation that an administrator sets on an object without the label, to give
	// it to a module: its value is the name of the module.
	AdoptBy = "operator.kyma-project.io/adopt-by"
	// concurrent is the number of requests to one runtime at the same time.
	concurrent = 10
)

// Owner is the owner of the objects of one [Runtime.ApplyAll].
type Owner struct {
	// Name is the value of [ModuleMark].
	Name string
	// Shares reports whether another owner still has an object, and with the same content. Nil
	// means that no other owner has an object.
	Shares func(ctx context.Context, object *unstructured.Unstructured, other string) (has, same bool, err error)
}

// operatorItself is the owner of the objects that the operator needs in each runtime. No module can
// have this name.
var operatorItself = Owner{Name: "(" + FieldOwner + ")"}

// claimAll decides about each object whether the owner may write it, and marks it. The error names
// all objects of other owners.
func (r *Runtime) claimAll(ctx context.Context, owner Owner, objects []*unstructured.Unstructured) error {
	return each(objects, func(object *unstructured.Unstructured) error { return r.claimObject(ctx, owner, object) })
}

func (r *Runtime) claimObject(ctx context.Context, owner Owner, object *unstructured.Unstructured) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(object.GroupVersionKind())

	err := r.Get(ctx, client.ObjectKeyFromObject(object), live)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		mark(object, owner.Name)
		return nil
	}
	if err != nil {
		return err
	}
	if !isOurs(live, owner) {
		return leave(object, owner)
	}

	return r.shareObject(ctx, owner, object, live.Annotations[ModuleMark])
}

// isOurs reports whether the operator has made an object, or was given it. A user may have removed
// the label of an object that the operator has written.
func isOurs(live *metav1.PartialObjectMetadata, owner Owner) bool {
	if live.Labels[ManagedByLabel] == FieldOwner || live.Annotations[AdoptBy] == owner.Name {
		return true
	}

	for _, entry := range live.ManagedFields {
		if entry.Manager == FieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply {
			return true
		}
	}
	return false
}

// leave leaves an object of another owner unchanged, or refuses it.
func leave(object *unstructured.Unstructured, owner Owner) error {
	if utils.IsNamespace(object) {
		onlyCreate(object)
		return nil
	}
	if object.GetAnnotations()[OnlyCreate] == "true" {
		return nil
	}

	return fmt.Errorf("%s %s exists and does not belong to a module: choose another name, or set its annotation %s: %s",
		object.GetKind(), nameOf(object), AdoptBy, owner.Name)
}

// shareObject decides about an object with the mark of another owner. Two modules may have the same
// object with the same content. The object keeps the mark of the first module until that module no
// longer has the object.
func (r *Runtime) shareObject(ctx context.Context, owner Owner, object *unstructured.Unstructured, other string) error {
	if other == "" || other == owner.Name {
		mark(object, owner.Name)
		return nil
	}

	has := other == operatorItself.Name
	same := false
	if !has && owner.Shares != nil {
		var err error
		has, same, err = owner.Shares(ctx, object, other)
		if err != nil {
			return err
		}
	}
	if !has {
		mark(object, owner.Name)
		return nil
	}
	if utils.IsNamespace(object) {
		onlyCreate(object)
		return nil
	}
	// An object that is created only once is left unchanged, because it exists.
	if same || object.GetAnnotations()[OnlyCreate] == "true" {
		mark(object, other)
		return nil
	}

	return fmt.Errorf("%s %s belongs to module %s and has different content: choose another name",
		object.GetKind(), nameOf(object), other)
}

// nameOf returns namespace and name, or only the name.
func nameOf(object client.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

func mark(object *unstructured.Unstructured, owner string) {
	utils.SetCommonMetadata([]*unstructured.Unstructured{object}, nil, map[string]string{ModuleMark: owner})
}

func onlyCreate(object *unstructured.Unstructured) {
	utils.SetCommonMetadata([]*unstructured.Unstructured{object}, nil, map[string]string{OnlyCreate: "true"})
}

// each calls do for all objects, some of them in parallel, and joins the errors in their order.
func each(objects []*unstructured.Unstructured, do func(*unstructured.Unstructured) error) error {
	errs := make([]error, len(objects))
	InParallel(len(objects), func(i int) { errs[i] = do(objects[i]) })
	return errors.Join(errs...)
}

// InParallel calls do with each number below n, and returns when all calls have returned. At most
// ten calls run at the same time, because each of them sends requests to one runtime.
func InParallel(n int, do func(int)) {
	slots := make(chan struct{}, concurrent)

	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			do(i)
			<-slots
		})
	}

	running.Wait()
}
