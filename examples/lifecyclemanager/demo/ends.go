package main

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
)

// registerLocal registers the control plane as a runtime.
func (d *demo) registerLocal(ctx context.Context) error {
	return d.Register(ctx, lab.ControlPlane, nil)
}

func (d *demo) localHasCatalog(ctx context.Context) bool {
	_, err := d.userKyma(ctx, lab.ControlPlane)
	return err == nil && slices.Equal(d.catalog(ctx, lab.ControlPlane), []string{"keda-1.0.0", "keda-2.0.0"})
}

func (d *demo) enableLocal(ctx context.Context) error {
	return d.setModules(ctx, lab.ControlPlane, v1beta2.Module{Name: "keda"})
}

func (d *demo) localIsReady(ctx context.Context) bool {
	kyma, err := d.userKyma(ctx, lab.ControlPlane)
	return err == nil && kyma.Status.State == v1beta2.Ready && len(kyma.Status.Modules) == 1
}

func (d *demo) deleteLocal(ctx context.Context) error {
	return d.Plane.Delete(ctx, kymaOf(lab.ControlPlane))
}

// localIsGone reports whether module and Kyma of the control plane are gone, and the operator and
// the Kyma of another runtime are there.
func (d *demo) localIsGone(ctx context.Context) bool {
	operator := &appsv1.Deployment{}
	operator.Namespace, operator.Name = "kcp-system", "lifecycle-manager"
	return d.hasNoKyma(ctx, lab.ControlPlane) && !d.hasNoKyma(ctx, first) &&
		apierrors.IsNotFound(d.Plane.Get(ctx, manager, &appsv1.Deployment{})) &&
		d.Plane.Get(ctx, client.ObjectKeyFromObject(operator), operator) == nil
}

func (d *demo) killFirst(ctx context.Context) error {
	d.Runtimes[first].Cut()
	return d.Plane.Delete(ctx, kymaOf(first))
}

func (d *demo) firstNamesCause(ctx context.Context) bool {
	kyma, err := d.planeKyma(ctx, first)
	return err == nil && kyma.Status.State == v1beta2.Deleting && kyma.Status.Message != ""
}

// forgetFirst is the way out of a deletion that a dead cluster holds up.
func (d *demo) forgetFirst(ctx context.Context) error {
	return d.Plane.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp-system", Name: first}})
}

func (d *demo) firstIsGone(ctx context.Context) bool { return d.hasNoKyma(ctx, first) }
