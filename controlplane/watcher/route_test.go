package watcher

import (
	"context"
	"errors"
	"testing"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

// failing is an API server that answers every read with the same error.
type failing struct {
	client.Reader

	err error
}

func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.err
}

// A control plane may have, or allow, one kind of routes only.
func TestRoutesOfAnotherKindNeedNotBeReadable(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
	away := errors.New("the API server is away")
	for name, test := range map[string]struct{ answer, want error }{
		"not found":     {apierrors.NewNotFound(resource, "kyma"), nil},
		"not installed": {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: resource.Group, Kind: "HTTPRoute"}}, nil},
		"not allowed":   {apierrors.NewForbidden(resource, "kyma", errors.New("no rule")), nil},
		"another error": {away, away},
	} {
		r := &reconciler{fresh: failing{err: test.answer}, routing: virtualServices{}}
		err := r.removeOthers(t.Context(), types.NamespacedName{Namespace: "kcp-system", Name: "kyma"})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}

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
