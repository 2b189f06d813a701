package watcher

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Routing is the kind of object that leads events from a gateway to a service.
type Routing string

// The kinds of routes.
const (
	// VirtualService is that of Istio, networking.istio.io/v1beta1, with its Gateways.
	VirtualService Routing = "VirtualService"
	// HTTPRoute is that of the Gateway API, gateway.networking.k8s.io/v1, with its Gateways.
	HTTPRoute Routing = "HTTPRoute"
)

// Options are what is optional of the controller. The zero value is ready to use.
type Options struct {
	// Routing is the kind of the routes; its custom resource definitions must be installed. Default: [VirtualService].
	Routing Routing
	// Name of the controller in logs, metrics and events. Default: "watcher".
	Name string
	// FieldOwner is who owns, for server-side apply, what the controller writes. Another name later leaves behind what the first one
	// owns. Default: "runtime-watcher".
	FieldOwner string
	// ClusterDomain is the domain of the control plane's services, for a VirtualService. Default: "cluster.local".
	ClusterDomain string
}

func (o Options) withDefaults() Options {
	o.Routing = cmp.Or(o.Routing, VirtualService)
	o.Name = cmp.Or(o.Name, "watcher")
	o.FieldOwner = cmp.Or(o.FieldOwner, "runtime-watcher")
	o.ClusterDomain = cmp.Or(o.ClusterDomain, "cluster.local")

	return o
}

func (o Options) validate() error {
	var problems []error

	if o.Routing != VirtualService && o.Routing != HTTPRoute {
		problems = append(problems, fmt.Errorf("Routing: want %q or %q, have %.40q", VirtualService, HTTPRoute, o.Routing))
	}

	if wrong := validation.IsDNS1123Subdomain(o.ClusterDomain); wrong != nil {
		problems = append(problems, fmt.Errorf("ClusterDomain %.80q: %s", o.ClusterDomain, wrong[0]))
	}

	return errors.Join(problems...)
}
