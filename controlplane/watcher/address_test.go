package watcher_test

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
)

func TestGatewayAddress(t *testing.T) {
	type row struct {
		kind       watcher.Routing
		spec, want string
	}

	istio := func(servers, want string) row { return row{watcher.VirtualService, "servers: [" + servers + "]", want} }
	gatewayAPI := func(listeners, want string) row {
		return row{watcher.HTTPRoute, "listeners: [" + listeners + "]", want}
	}

	tests := map[string]row{
		"Istio": istio(`{port: {number: 80, protocol: HTTP}, hosts: [b]},
			{port: {number: 443, protocol: HTTPS}, tls: {mode: MUTUAL}, hosts: ["*.a", "x/a.example.com"]}`,
			"a.example.com:443"),
		"no TLS":   istio(`{port: {number: 80, protocol: HTTP}, hosts: [b.example.com]}`, "b.example.com:80"),
		"wildcard": istio(`{port: {number: 443, protocol: HTTPS}, tls: {mode: SIMPLE}, hosts: ["*"]}`, ""),
		"TCP":      istio(`{port: {number: 443, protocol: TCP}, hosts: [a]}`, ""),
		"listener": gatewayAPI(`{name: p, port: 80, protocol: HTTP, hostname: b},
			{name: s, port: 8443, protocol: HTTPS, hostname: a.example.com}`, "a.example.com:8443"),
		"status":    gatewayAPI(`{name: s, port: 443, protocol: HTTPS}`, "192.0.2.1:443"),
		"a pattern": gatewayAPI(`{name: s, port: 443, protocol: HTTPS, hostname: "*.a"}`, ""),
		"none":      {watcher.NoRouting, "{}", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := "metadata: {namespace: istio-system, name: gateway}\nspec: {" + test.spec + "}"
			scheme := runtime.NewScheme()
			if err := watcher.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}

			var object client.Object = &networkingv1beta1.Gateway{}
			if test.kind == watcher.HTTPRoute {
				object, text = &gatewayv1.Gateway{}, text+"\nstatus: {addresses: [{value: 192.0.2.1}]}"
			}
			if test.kind == watcher.NoRouting {
				text = "metadata: {namespace: istio-system, name: gateway}"
			}
			if err := yaml.Unmarshal([]byte(text), object); err != nil {
				t.Fatal(err)
			}

			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()
			have, err := watcher.GatewayAddress(t.Context(), reader, test.kind,
				client.ObjectKey{Namespace: "istio-system", Name: "gateway"})
			if have != test.want || errors.Is(err, watcher.ErrNoAddress) != (test.want == "") {
				t.Errorf("got %q, %v, want %q", have, err, test.want)
			}
		})
	}
}
