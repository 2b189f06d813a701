package watcher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apinetworkingv1beta1 "istio.io/api/networking/v1beta1"
	networkingv1beta1 "istio.io/client-go/pkg/apis/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// virtualServices is the routing by VirtualServices of Istio. The reconciler calls it.
type virtualServices struct {
	clusterDomain string
	where         string // the namespaces of the gateways, for messages
}

func (virtualServices) kind() string { return "VirtualService" }

func (virtualServices) newGateway() client.Object { return &networkingv1beta1.Gateway{} }

func (virtualServices) newRoute() client.Object { return &networkingv1beta1.VirtualService{} }

func (v virtualServices) buildRoute(
	ctx context.Context, reader client.Reader, selector labels.Selector, w *v1beta2.Watcher, m core.Manager,
) (client.Object, string, error) {
	gateways := &networkingv1beta1.GatewayList{}
	if err := reader.List(ctx, gateways, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, "", fmt.Errorf("list Gateways: %w", err)
	}

	names, hosts := namesAndHosts(gateways.Items)
	if len(names) == 0 {
		return nil, "", problem(v1beta2.ReasonGatewayNotFound, "no Gateway of Istio, %s, is selected by %s", v.where, selector)
	}
	if len(hosts) == 0 {
		return nil, "", problem(v1beta2.ReasonGatewayWithoutHosts,
			"the gateways %s, selected by %s, have no server for HTTP with hosts", strings.Join(names, ", "), selector)
	}

	destination := v.destination(w.Spec.ServiceInfo)
	rule := &apinetworkingv1beta1.HTTPRoute{
		Route:   []*apinetworkingv1beta1.HTTPRouteDestination{{Destination: destination}},
		Retries: &apinetworkingv1beta1.HTTPRetry{Attempts: retryAttempts, RetryOn: retryOn},
	}

	for _, prefix := range prefixes(m) {
		rule.Match = append(rule.Match, &apinetworkingv1beta1.HTTPMatchRequest{
			Uri: &apinetworkingv1beta1.StringMatch{MatchType: &apinetworkingv1beta1.StringMatch_Prefix{Prefix: prefix}},
		})
	}

	route := &networkingv1beta1.VirtualService{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1beta1.SchemeGroupVersion.String(), Kind: v.kind()},
	}
	route.Spec.Gateways = names
	route.Spec.Hosts = hosts
	route.Spec.Http = []*apinetworkingv1beta1.HTTPRoute{rule}
	where := fmt.Sprintf("%s to %s:%d", strings.Join(hosts, ", "), destination.GetHost(), w.Spec.ServiceInfo.Port)

	return route, where, nil
}

const (
	// retryAttempts reaches each of three replicas, as Istio does not ask one of them twice.
	retryAttempts = 2
	// retryOn is the default of Istio, and the answer of a replica that does not lead. An event may
	// arrive twice, so that each request may be repeated.
	retryOn = "connect-failure,refused-stream,unavailable,cancelled,503"
)

func (v virtualServices) destination(service v1beta2.Service) *apinetworkingv1beta1.Destination {
	return &apinetworkingv1beta1.Destination{
		Host: service.Name + "." + service.Namespace + ".svc." + v.clusterDomain,
		Port: &apinetworkingv1beta1.PortSelector{Number: uint32(service.Port)}, //nolint:gosec // It is at most maxPort.
	}
}

// checkRoute accepts every route, as Istio reports nothing in its status by default.
func (virtualServices) checkRoute(context.Context, client.Reader, client.ObjectKey) error { return nil }

// namesAndHosts returns sorted lists, so that the same gateways make the same route.
func namesAndHosts(gateways []*networkingv1beta1.Gateway) (names, hosts []string) {
	for _, gateway := range gateways {
		names = append(names, gateway.Namespace+"/"+gateway.Name)
		for _, server := range gateway.Spec.GetServers() {
			hosts = append(hosts, hostsOf(server)...)
		}
	}

	slices.Sort(names)
	slices.Sort(hosts)
	return names, slices.Compact(hosts)
}

// hostsOf returns the hosts of a server of a gateway, none unless it looks at paths. A server
// without tls serves plain text.
func hostsOf(server *apinetworkingv1beta1.Server) (hosts []string) {
	if !servesHTTP(server) {
		return nil
	}

	for _, host := range server.GetHosts() {
		// A prefix <namespace>/ limits the namespaces that may bind to the host.
		hosts = append(hosts, host[strings.LastIndex(host, "/")+1:])
	}

	return hosts
}

func servesHTTP(server *apinetworkingv1beta1.Server) bool {
	if slices.Contains([]string{"TCP", "TLS", "MONGO"}, strings.ToUpper(server.GetPort().GetProtocol())) {
		return false
	}

	tls := server.GetTls()
	if tls == nil {
		return true
	}

	// The zero value of a mode is PASSTHROUGH.
	isPassedThrough := tls.GetMode() == apinetworkingv1beta1.ServerTLSSettings_PASSTHROUGH ||
		tls.GetMode() == apinetworkingv1beta1.ServerTLSSettings_AUTO_PASSTHROUGH
	return !isPassedThrough
}
