package node

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const sliceOwner = "node-stand-in"

// publish writes the EndpointSlice of each Service that selects pods, and removes those whose Service is gone.
func (n *Node) publish(ctx context.Context, services []corev1.Service) error {
	var slicesThere discoveryv1.EndpointSliceList
	if err := n.cache.List(ctx, &slicesThere, client.MatchingLabels{discoveryv1.LabelManagedBy: sliceOwner}); err != nil {
		return err
	}

	for i := range slicesThere.Items {
		slice := &slicesThere.Items[i]
		if !slices.ContainsFunc(services, func(s corev1.Service) bool { return s.Namespace == slice.Namespace && s.Name == slice.Name }) {
			if err := ignoreRaces(n.plane.Client.Delete(ctx, slice)); err != nil {
				return err
			}
		}
	}

	for i := range services {
		service := &services[i]
		if len(service.Spec.Selector) == 0 || service.DeletionTimestamp != nil {
			continue
		}

		at := slices.IndexFunc(slicesThere.Items, func(s discoveryv1.EndpointSlice) bool {
			return s.Namespace == service.Namespace && s.Name == service.Name
		})

		var there *discoveryv1.EndpointSlice
		if at >= 0 {
			there = &slicesThere.Items[at]
		}

		if err := n.publishOne(ctx, service, there); err != nil {
			return err
		}
	}

	return nil
}

func (n *Node) publishOne(ctx context.Context, service *corev1.Service, there *discoveryv1.EndpointSlice) error {
	wanted := n.slice(service)

	switch {
	case there == nil:
		err := n.plane.Client.Create(ctx, wanted)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}

		return ignoreRaces(err)
	case equality.Semantic.DeepEqual(there.Endpoints, wanted.Endpoints) && equality.Semantic.DeepEqual(there.Ports, wanted.Ports):
		return nil
	default:
		updated := there.DeepCopy()
		updated.Endpoints, updated.Ports = wanted.Endpoints, wanted.Ports

		return ignoreRaces(n.plane.Client.Update(ctx, updated))
	}
}

func (n *Node) slice(service *corev1.Service) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: sliceOwner},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}

	pods := selected(service, n.running)

	for _, p := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.ip.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(p.isReady() && !p.isEnding()), Serving: new(p.isReady()), Terminating: new(p.isEnding()),
			},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: service.Namespace, Name: p.name},
		})
	}

	for _, port := range service.Spec.Ports {
		published := discoveryv1.EndpointPort{Name: new(port.Name), Protocol: new(port.Protocol)}

		if len(pods) > 0 {
			if number, err := pods[0].port(port.TargetPort.String()); err == nil {
				published.Port = new(int32(number))
			}
		}

		slice.Ports = append(slice.Ports, published)
	}

	return slice
}
