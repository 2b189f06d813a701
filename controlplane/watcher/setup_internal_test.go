package watcher

import (
	"testing"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

func TestARouteIsAppliedAgainForItsOwnFieldsOnly(t *testing.T) {
	tests := map[string]struct {
		change func(route client.Object)
		want   bool
	}{
		"annotation": {func(o client.Object) { o.SetAnnotations(map[string]string{"stamp": "2"}) }, false},
		"label":      {func(o client.Object) { o.SetLabels(map[string]string{"stamp": "2"}) }, false},
		"version":    {func(o client.Object) { o.SetResourceVersion("8") }, false},
		"own label":  {func(o client.Object) { o.SetLabels(map[string]string{v1beta2.ManagedByLabel: "2"}) }, true},
		"owner":      {func(o client.Object) { o.SetOwnerReferences([]metav1.OwnerReference{{}}) }, true},
		"spec":       {func(o client.Object) { o.SetGeneration(2) }, true},
	}
	for name, test := range tests {
		for _, before := range []client.Object{&gatewayv1.HTTPRoute{}, &networkingv1beta1.VirtualService{}} {
			after, _ := before.DeepCopyObject().(client.Object)
			test.change(after)
			if got := ownFields().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != test.want {
				t.Errorf("%s of %T: %t", name, before, got)
			}
		}
	}
	accepted := &gatewayv1.HTTPRoute{}
	accepted.Status.Parents = []gatewayv1.RouteParentStatus{{}}
	if !ownFields().Update(event.UpdateEvent{ObjectOld: &gatewayv1.HTTPRoute{}, ObjectNew: accepted}) {
		t.Error("the verdict of a gateway is not seen")
	}
}
