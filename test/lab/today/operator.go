package today

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// fieldOwner owns the fields that the operator applies.
const fieldOwner = "declarative.kyma-project.io/applier"

// addedAt is an annotation of the gateway's Secret: when the CA came into the bundle. The operator
// publishes the CA as server certificate when grace has passed since then (lifecycle-manager c5b83f1).
const (
	addedAt = "caAddedToBundleAt"
	grace   = 4 * 24 * time.Hour
)

// Duties are the parts of an operator of today that are on.
type Duties struct {
	// Gateway keeps the gateway's Secret, Watchers the VirtualServices and the state of Watchers.
	Gateway, Watchers bool
	// Image of the agents, "" for an operator that keeps no agents and no certificates for them.
	Image string
}

// Operator acts as an operator of today. It applies everything anew in each round, except the
// gateway's Secret: it keeps that one when it starts and when the CA's Secret changes. The real
// operator also does so every five minutes.
type Operator struct {
	// Plane is a client of the control plane. Runtimes are the clients of runtimes, by the names of
	// Kymas.
	Plane    client.Client
	Runtimes map[string]client.Client
	// Address is the address of the gateway.
	Address string
	// Shape contains the names.
	Shape Shape

	mu     sync.Mutex
	duties Duties
	// rootSeen is the version of the CA's Secret that the gateway's Secret was last kept for.
	rootSeen string
}

// Set waits for the round in progress, and changes the duties.
func (o *Operator) Set(change func(d *Duties)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.duties)
}

// Run works until ctx ends, with a pause of a second between two rounds. report gets the errors of
// a round. The round is repeated.
func (o *Operator) Run(ctx context.Context, report func(error)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := o.round(ctx); err != nil && ctx.Err() == nil {
			report(err)
		}
	}, time.Second)
}

// round holds the lock, so that it does not overlap with other duties.
func (o *Operator) round(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()

	var failed []error
	d := o.duties
	if !d.Gateway {
		o.rootSeen = "" // The next one starts anew.
	} else {
		failed = append(failed, o.keepGateway(ctx))
	}

	if d.Watchers {
		failed = append(failed, o.keepWatchers(ctx))
	}
	if d.Image != "" {
		failed = append(failed, o.keepAgents(ctx, d.Image))
	}

	return errors.Join(failed...)
}

// keepGateway publishes the CA: it is the server certificate, and verifies runtimes.
func (o *Operator) keepGateway(ctx context.Context) error {
	var root corev1.Secret
	if err := o.Plane.Get(ctx, o.Shape.CA(), &root); err != nil || root.ResourceVersion == o.rootSeen {
		return client.IgnoreNotFound(err) // It is not issued yet, or has no event.
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Shape.GatewaySecret().Namespace, Name: o.Shape.GatewaySecret().Name,
	}}
	_, err := controllerutil.CreateOrUpdate(ctx, o.Plane, secret, func() error {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		if !bytes.Contains(secret.Data["ca.crt"], bytes.TrimSpace(root.Data["tls.crt"])) {
			secret.Data["ca.crt"] = append(bytes.Clone(root.Data["tls.crt"]), secret.Data["ca.crt"]...)
			metav1.SetMetaDataAnnotation(&secret.ObjectMeta, addedAt, time.Now().UTC().Format(time.RFC3339))
		}

		added, err := time.Parse(time.RFC3339, secret.Annotations[addedAt])
		if len(secret.Data["tls.crt"]) == 0 || err == nil && time.Since(added) > grace {
			maps.Copy(secret.Data, map[string][]byte{"tls.crt": root.Data["tls.crt"], "tls.key": root.Data["tls.key"]})
		}

		return err
	})
	if err == nil {
		o.rootSeen = root.ResourceVersion
	}

	return err
}

// RouteKind is the kind of VirtualServices.
func RouteKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1beta1", Kind: "VirtualService"}
}

func (o *Operator) keepWatchers(ctx context.Context) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(o.Shape.WatcherKind())
	if err := o.Plane.List(ctx, list); err != nil {
		return err
	}

	for i := range list.Items {
		if err := o.keepWatcher(ctx, &list.Items[i]); err != nil {
			return err
		}
	}

	return nil
}

func (o *Operator) keepWatcher(ctx context.Context, w *unstructured.Unstructured) error {
	if controllerutil.AddFinalizer(w, Finalizer) {
		if err := o.Plane.Update(ctx, w); err != nil {
			return err
		}
	}

	route := &unstructured.Unstructured{}
	route.SetGroupVersionKind(RouteKind())
	route.SetNamespace(w.GetNamespace())
	route.SetName(w.GetName())

	if _, err := controllerutil.CreateOrUpdate(ctx, o.Plane, route, func() error {
		route.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: w.GetAPIVersion(), Kind: w.GetKind(), Name: w.GetName(), UID: w.GetUID(),
		}})
		route.Object["spec"] = o.Shape.objects("virtualservice")[0].Object["spec"]
		return nil
	}); err != nil {
		return err
	}

	return o.keepCondition(ctx, w)
}

// keepCondition reports that the route is configured, once. The status is applied, and conditions
// are a list by their type, so that the conditions of other programs stay.
func (o *Operator) keepCondition(ctx context.Context, w *unstructured.Unstructured) error {
	conditions, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok && fields["type"] == "VirtualService" {
			return nil
		}
	}

	applied := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
		"state": "Ready", "observedGeneration": w.GetGeneration(),
		"conditions": []any{map[string]any{
			"type": "VirtualService", "status": "True", "reason": "Ready", "message": "VirtualService is configured",
			"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
		}},
	}}}

	applied.SetGroupVersionKind(w.GroupVersionKind())
	applied.SetNamespace(w.GetNamespace())
	applied.SetName(w.GetName())

	return o.Plane.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner("lifecycle-manager"), client.ForceOwnership)
}

func (o *Operator) keepAgents(ctx context.Context, image string) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(Today.WatcherKind().GroupVersion().WithKind("Kyma"))
	if err := o.Plane.List(ctx, list, client.InNamespace(PlaneNamespace)); err != nil {
		return err
	}

	var failed []error
	for i := range list.Items {
		name := list.Items[i].GetName()
		labels := list.Items[i].GetLabels()
		id := labels[RuntimeIDLabel]
		skipped := labels["operator.kyma-project.io/skip-reconciliation"] == "true"
		if there := o.Runtimes[name]; there != nil && !skipped {
			failed = append(failed, o.keepAgent(ctx, there, name, id, image))
		}
	}

	return errors.Join(failed...)
}

// keepAgent applies the objects of one runtime, when its certificate is issued.
func (o *Operator) keepAgent(ctx context.Context, there client.Client, kyma, id, image string) error {
	if err := apply(ctx, o.Plane, o.Shape.RuntimeCertificate(kyma, id)); err != nil {
		return err
	}

	var issued, gateway corev1.Secret
	err := errors.Join(o.Plane.Get(ctx, o.Shape.RuntimeSecret(kyma), &issued), o.Plane.Get(ctx, o.Shape.GatewaySecret(), &gateway))
	if apierrors.IsNotFound(err) || len(issued.Data["tls.crt"]) == 0 {
		return client.IgnoreNotFound(err)
	}

	secret := map[string][]byte{
		"ca.crt": gateway.Data["ca.crt"], "tls.crt": issued.Data["tls.crt"], "tls.key": issued.Data["tls.key"],
	}
	all := append(o.Shape.Agent(Namespace, image, o.Address, secret), o.Shape.Configuration(Namespace, gateway.Data["ca.crt"]))
	for _, object := range all {
		if err := apply(ctx, there, object); err != nil {
			return err
		}
	}

	return nil
}

func apply(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(fieldOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}
