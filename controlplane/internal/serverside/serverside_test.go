package serverside_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apinetworkingv1beta1 "istio.io/api/networking/v1beta1"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

func TestContentIsWhatTheAuthorSays(t *testing.T) {
	tests := map[string]struct {
		object any
		want   map[string]any
	}{
		"status and what is empty": {
			&corev1.Service{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: "b"}}},
			},
			map[string]any{
				"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "a"},
				"spec": map[string]any{},
			},
		},
		"the Gateway API": {
			&gatewayv1.HTTPRoute{Spec: gatewayv1.HTTPRouteSpec{Hostnames: []gatewayv1.Hostname{"b"}}},
			map[string]any{"metadata": map[string]any{}, "spec": map[string]any{"hostnames": []any{"b"}}},
		},
		// Its messages know no way but JSON.
		"Istio": {
			&networkingv1beta1.VirtualService{Spec: apinetworkingv1beta1.VirtualService{Http: []*apinetworkingv1beta1.HTTPRoute{{
				Match: []*apinetworkingv1beta1.HTTPMatchRequest{{
					Uri: &apinetworkingv1beta1.StringMatch{MatchType: &apinetworkingv1beta1.StringMatch_Prefix{Prefix: "/v3/"}},
				}},
				Route: []*apinetworkingv1beta1.HTTPRouteDestination{{
					Destination: &apinetworkingv1beta1.Destination{Host: "b", Port: &apinetworkingv1beta1.PortSelector{Number: 8082}},
				}},
			}}}},
			map[string]any{"metadata": map[string]any{}, "spec": map[string]any{"http": []any{map[string]any{
				"match": []any{map[string]any{"uri": map[string]any{"prefix": "/v3/"}}},
				"route": []any{map[string]any{"destination": map[string]any{
					"host": "b",
					"port": map[string]any{"number": int64(8082)},
				}}},
			}}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			have, err := serverside.Content(test.object)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
		})
	}
}

func TestContentNamesWhatItIsNot(t *testing.T) {
	if _, err := serverside.Content(struct{}{}); err == nil {
		t.Error("a value is taken for an object")
	}
}
