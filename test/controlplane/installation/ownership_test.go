package installation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestWhatIsNotOursStaysAsItIs puts objects of others where an installer has its own.
func TestWhatIsNotOursStaysAsItIs(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	for name, test := range map[string]func(*world){
		"shop": objectsOfACustomerAreRefused, "adopted": objectsAreAdoptedByName,
		"never": uninstallWithoutInstallRemovesNothing, "guests": aNamespaceWithOthersObjectsStays,
		"two-names": twoInstallersWithNamesOfTheirOwn, "earlier": anEarlierVersionIsUpgraded,
		"successor": aSuccessorIsNotDeleted, "appears": anObjectThatAppearsStays,
		"parts": aPartThatIsNotOursStays,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, plane, name)) })
	}
}

// shopDeployment is one of a customer, with a name of the agent.
func shopDeployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": "shop-frontend"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "shop", Image: "shop.example.com/frontend:v7"}},
		}},
	}}
}

// shopObjects have names of an agent with the name "watcher". The API server would merge several of them with ours.
func shopObjects(namespace string) []client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	return []client.Object{
		shopDeployment(namespace, "watcher"),
		&corev1.Secret{ObjectMeta: meta("watcher-tls"), Data: map[string][]byte{"password": []byte("p")}},
		&corev1.ConfigMap{ObjectMeta: meta("watcher-managers"), Data: map[string]string{"managers": "of the shop"}},
		&corev1.ServiceAccount{ObjectMeta: meta("watcher")},
		&corev1.Service{ObjectMeta: meta("watcher"), Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "web", Port: 80}}, Selector: map[string]string{"app": "shop-frontend"},
		}},
		&rbacv1.Role{ObjectMeta: meta("watcher-canary")},
	}
}

// versionsOf returns the UID and the resource version of objects.
func (w *world) versionsOf(objects []client.Object) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for _, object := range objects {
		live, _ := object.DeepCopyObject().(client.Object)
		err := w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), live)
		if err != nil {
			all[nameOf(object)] = err.Error()
			continue
		}
		all[nameOf(object)] = string(live.GetUID()) + " " + live.GetResourceVersion()
	}
	return all
}

// nameOf is as an error has it.
func nameOf(object client.Object) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.") + "/" + object.GetName()
}

// objectsOfACustomerAreRefused one at a time, by kind and name, and nothing is written.
func objectsOfACustomerAreRefused(w *world) {
	w.createNamespace()
	w.opts.Name = "watcher"
	w.opts.NoCanary = false
	w.runtime.Secret = newSecretFor(w.t, w.namespace, "watcher", w.namespace)
	for _, object := range shopObjects(w.namespace) {
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), object))
		before := w.versionsOf([]client.Object{object})
		refused(w.t, nameOf(object), w.installer(), w.runtime, "owned", nameOf(object), "Options.Adopt")
		w.is(w.uninstall(), installation.Removed)
		rig.Same(w.t, "the object of the customer", before, w.versionsOf([]client.Object{object}))
		rig.Same(w.t, "writes", []string(nil), w.since())
		rig.NoError(w.t, w.plane.Client.Delete(w.t.Context(), object))
	}
	// Control: without them, the agent is installed.
	w.install()
	w.answer(1)
	w.uninstall()
}

// objectsAreAdoptedByName, and belong to the installer from then on.
func objectsAreAdoptedByName(w *world) {
	w.createNamespace()
	w.opts.NoCanary = true
	objects := []client.Object{
		shopDeployment(w.namespace, "runtime-watcher"),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "runtime-watcher-managers"}},
	}
	for _, object := range objects {
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), object))
	}
	w.opts.Adopt = []string{"Deployment/runtime-watcher"}
	refused(w.t, "one of two", w.installer(), w.runtime, "owned", "ConfigMap/runtime-watcher-managers")
	w.opts.Adopt = append(w.opts.Adopt, "ConfigMap/runtime-watcher-managers")
	// Before an installation, an adoption removes nothing.
	before := w.versionsOf(objects)
	w.is(w.uninstall(), installation.Removed)
	rig.Same(w.t, "objects before an installation", before, w.versionsOf(objects))
	w.since()
	w.installed()
	w.opts.Adopt = nil
	w.is(w.install(), installation.Ready)
	rig.Same(w.t, "selector", map[string]string{"app.kubernetes.io/name": "runtime-watcher"}, w.deployment().Spec.Selector.MatchLabels)
	w.gone()
}

// uninstallWithoutInstallRemovesNothing of an agent that somebody has installed by hand, or another control plane.
func uninstallWithoutInstallRemovesNothing(w *world) {
	w.opts.NoCanary = false
	w.installed()
	for name, mark := range map[string]string{"marks of the manifests": "manifests", "marks of the chart": "helm", "no marks": ""} {
		r := &race{world: w}
		r.setOwner(mark)
		before := w.versions()
		w.is(w.uninstall(), installation.Removed)
		rig.Same(w.t, "objects with "+name, before, w.versions())
		refused(w.t, name, w.installer(), w.runtime, "owned", "ValidatingWebhookConfiguration")
		rig.Same(w.t, "objects with "+name, before, w.versions())
		if mark == "" {
			continue
		}
		// The agent is adopted on purpose.
		template := w.deployment().Spec.Template
		w.opts.FormerOwners = []string{mark}
		w.installed()
		w.opts.FormerOwners = nil
		w.installed()
		rig.Same(w.t, "pods after the adoption", template, w.deployment().Spec.Template)
	}
}

// aNamespaceWithOthersObjectsStays, and its own objects do not hold it.
func aNamespaceWithOthersObjectsStays(w *world) {
	w.installed()
	definition := rig.Definition("shop.example.com", "orders", "Order")
	rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), definition))
	defer func() { _ = w.plane.Client.Delete(context.Background(), definition) }()
	order := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "shop.example.com/v1", "kind": "Order"}}
	order.SetNamespace(w.namespace)
	order.SetName("guest")
	rig.Eventually(w.t, rig.Patience, "the kind is served", func() bool {
		return w.plane.Client.Create(w.t.Context(), order.DeepCopy(), client.DryRunAll) == nil
	})
	for _, guest := range []client.Object{
		order,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "guest"}},
		shopDeployment(w.namespace, "guest"),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "guest"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		}},
	} {
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), guest))
		w.is(w.uninstall(), installation.Removed)
		namespace := rig.Stored(w.t, w.client, client.ObjectKey{Name: w.namespace}, &corev1.Namespace{})
		if namespace.DeletionTimestamp != nil {
			w.t.Fatalf("the namespace ends with %s", nameOf(guest))
		}
		guest.SetFinalizers(nil)
		rig.NoError(w.t, w.plane.Client.Update(w.t.Context(), guest))
		rig.NoError(w.t, w.plane.Client.Delete(w.t.Context(), guest, client.GracePeriodSeconds(0)))
	}
	// Control: without guests, the namespace ends.
	w.is(w.uninstall(), installation.Progressing, "Namespace")
}

// twoInstallersWithNamesOfTheirOwn share a namespace, with two owners and with one.
func twoInstallersWithNamesOfTheirOwn(w *world) {
	for _, owner := range []string{"", "another"} {
		first := newWorld(w.t, w.plane, cmp.Or(owner, "same")+"-owner")
		first.installed()
		second := newWorld(w.t, w.plane, first.namespace)
		second.opts.Name = "second"
		second.opts.ConfigurationName = first.namespace + "-second"
		second.opts.Owner = owner
		second.runtime.Secret = newSecretFor(w.t, first.namespace, "second", first.namespace)
		second.install()
		second.available(1)
		before := second.deployment()

		first.is(first.uninstall(), installation.Removed)
		after := second.deployment()
		rig.Same(w.t, "generation of the second agent", before.Generation, after.Generation)
		rig.Same(w.t, "UID of the second agent", before.UID, after.UID)
		namespace := rig.Stored(w.t, w.client, client.ObjectKey{Name: first.namespace}, &corev1.Namespace{})
		if namespace.DeletionTimestamp != nil {
			w.t.Error("the namespace of the second agent ends")
		}

		// The other way round.
		first.install()
		first.available(1)
		second.is(second.uninstall(), installation.Removed)
		first.deployment()
	}
}

// anEarlierVersionIsUpgraded: its namespace and some of its objects have no owner. The field manager alone is no proof.
func anEarlierVersionIsUpgraded(w *world) {
	w.opts.NoCanary = false
	w.installed()
	unmark := func(object client.Object) {
		before, _ := object.DeepCopyObject().(client.Object)
		annotations := maps.Clone(object.GetAnnotations())
		delete(annotations, ownerLabel)
		object.SetAnnotations(annotations)
		rig.NoError(w.t, w.client.Patch(w.t.Context(), object, client.MergeFrom(before)))
	}
	objects := w.objects()
	for n := range objects {
		if objects[n].GetKind() != "ValidatingWebhookConfiguration" {
			unmark(&objects[n])
		}
	}
	unmark(rig.Stored(w.t, w.client, client.ObjectKey{Name: w.namespace}, &corev1.Namespace{}))
	template := w.deployment().Spec.Template
	w.installed()
	rig.Same(w.t, "pods after the upgrade", template, w.deployment().Spec.Template)
	for _, object := range w.objects() {
		if object.GetAnnotations()[ownerLabel] == "" {
			w.t.Errorf("%s %s has no mark after the upgrade", object.GetKind(), object.GetName())
		}
	}
	rig.Same(w.t, "owner of the namespace", "control-plane.example.com:8443",
		rig.Stored(w.t, w.client, client.ObjectKey{Name: w.namespace}, &corev1.Namespace{}).Annotations[ownerLabel])

	objects = w.objects()
	for n := range objects {
		unmark(&objects[n])
	}
	refused(w.t, "without a mark on any object", w.installer(), w.runtime, "owned", "ConfigMap/runtime-watcher-managers")
}

// intercepted calls a function once before the first write of a kind.
func (w *world) intercepted(kind, verb string, meanwhile func()) client.Client {
	var first sync.Once // An installer applies objects in parallel.
	once := func(have, with string) {
		if have == kind && with == verb {
			first.Do(meanwhile)
		}
	}
	return interceptor.NewClient(rig.Must(client.NewWithWatch(w.plane.Config, client.Options{})), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			once(kindOf(object), "delete")
			return c.Delete(ctx, object, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object apiruntime.ApplyConfiguration, opts ...client.ApplyOption) error {
			once(object.(interface{ GetKind() string }).GetKind(), "apply")
			return c.Apply(ctx, object, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			once(kindOf(object), "create")
			return c.Create(ctx, object, opts...)
		},
	})
}

// aSuccessorIsNotDeleted: between the read and the deletion, the object is deleted and another one gets its name.
func aSuccessorIsNotDeleted(w *world) {
	w.installed()
	var successor types.UID
	w.runtime.Client = w.intercepted("Deployment", "delete", func() {
		deployment := w.deployment()
		rig.NoError(w.t, w.plane.Client.Delete(w.t.Context(), deployment))
		shop := shopDeployment(w.namespace, "runtime-watcher")
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), shop))
		successor = shop.UID
	})
	_, err := w.installer().Uninstall(w.t.Context(), w.runtime)
	rig.Fails(w.t, "removal of a successor", err, "Deployment")
	w.runtime.Client = w.client
	w.is(w.uninstall(), installation.Removed)
	rig.Same(w.t, "UID", successor, w.deployment().UID)
}

// anObjectThatAppearsStays: it was absent when it was read. The API server would merge a ServiceAccount.
func anObjectThatAppearsStays(w *world) {
	w.createNamespace()
	objects := map[string]client.Object{
		"Deployment": shopDeployment(w.namespace, "runtime-watcher"),
		"ServiceAccount": &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "runtime-watcher", Labels: map[string]string{"app": "shop-frontend"},
		}},
		"Secret": &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "runtime-watcher-tls"}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k")},
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(objects)) {
		object := objects[kind]
		w.runtime.Client = w.intercepted(kind, "apply", func() {
			rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), object))
		})
		_, err := w.installer().Install(w.t.Context(), w.runtime)
		rig.Fails(w.t, kind+" that appears", err, kind)

		live, _ := object.DeepCopyObject().(client.Object)
		rig.NoError(w.t, w.plane.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), live))
		rig.Same(w.t, "labels and annotations of "+kind, []map[string]string{object.GetLabels(), object.GetAnnotations()},
			[]map[string]string{live.GetLabels(), live.GetAnnotations()})
		w.runtime.Client = w.client
		refused(w.t, "afterwards", w.installer(), w.runtime, "owned", kind)
		rig.NoError(w.t, w.plane.Client.Delete(w.t.Context(), object))
		w.uninstall()
	}

	w.runtime.Client = w.client
	w.install()
	w.answer(1)
	w.runtime.Client = w.intercepted("ValidatingWebhookConfiguration", "create", func() {
		other := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
			"metadata": map[string]any{"name": w.opts.ConfigurationName},
		}}
		rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), other))
	})
	_, err := w.installer().Install(w.t.Context(), w.runtime)
	rig.Fails(w.t, "a configuration that appears", err, "ValidatingWebhookConfiguration")
	rig.Same(w.t, "webhooks in it", 0, len(w.configuration().Webhooks))
}

// aPartThatIsNotOursStays: others have an object with a name of a part that this installation does not have.
func aPartThatIsNotOursStays(w *world) {
	w.createNamespace()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "runtime-watcher-canary"}}
	rig.NoError(w.t, w.plane.Client.Create(w.t.Context(), role))
	before := w.versionsOf([]client.Object{role})
	w.opts.NoCanary = true
	w.installed()
	w.is(w.uninstall(), installation.Removed)
	rig.Same(w.t, "Role of others", before, w.versionsOf([]client.Object{role}))
}
