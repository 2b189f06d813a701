package watcher

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Routing is the kind of object that leads events from a gateway to a service.
type Routing string

const (
	// VirtualService is the route of Istio, networking.istio.io/v1beta1.
	VirtualService Routing = "VirtualService"
	// HTTPRoute is the route of the Gateway API, gateway.networking.k8s.io/v1.
	HTTPRoute Routing = "HTTPRoute"
	// NoRouting makes no routes, for runtimes that connect to their operator without a gateway. The
	// status still reports whether a Watcher is valid.
	NoRouting Routing = "None"
)

const fieldOwner = "runtime-watcher"

// Options are the optional settings of [SetUp]. The zero value is the documented default.
type Options struct {
	// Routing is the kind of the routes. Its custom resource definitions must be installed. Routes
	// of the other kinds that an earlier setting made are removed. Default: [VirtualService].
	Routing Routing
	// Names are the names of the operator: the group and the kind of the Watchers, and the label of
	// the routes. They must equal the Names of the installer. Default: the defaults of
	// [names.Names].
	Names names.Names
	// Name is the name of the controller in logs, metrics and events. Default: "watcher".
	Name string
	// Owner is the identity of this control plane, as in installation.Options. It becomes the
	// annotation [names.Names.InstalledBy] of each route. A route with another value stays
	// unchanged. Default: none, so only the UID of the Watcher decides.
	Owner string
	// GatewayNamespaces are the namespaces in which gateways are selected. The controller then
	// needs the rights on gateways only in these namespaces. Default: all namespaces.
	GatewayNamespaces []string
	// ClusterDomain is the DNS domain of the services in the control plane. Default:
	// "cluster.local".
	ClusterDomain string
	// Installed returns the number of runtimes in which a generation of a Watcher is installed and
	// the number of all runtimes, as runtimes.Overview does, for the condition Ready. It is called
	// every 30 s for each Watcher and must not block. Default: the condition reports only the
	// route.
	Installed func(watcher types.NamespacedName, generation int64) (installed, all int)
}

func (o Options) withDefaults() Options {
	o.Names = o.Names.WithDefaults()
	o.Routing = cmp.Or(o.Routing, VirtualService)
	o.Name = cmp.Or(o.Name, "watcher")
	o.ClusterDomain = cmp.Or(o.ClusterDomain, "cluster.local")

	return o
}

func (o Options) validate() error {
	wrong := validation.IsDNS1123Subdomain(o.ClusterDomain)
	problems := []error{
		invalidNames(o.Names),
		option.Unless(slices.Contains([]Routing{VirtualService, HTTPRoute, NoRouting}, o.Routing),
			"Routing: want %q, %q or %q, have %.40q", VirtualService, HTTPRoute, NoRouting, o.Routing),
		option.Unless(wrong == nil, "ClusterDomain: %s, have %.80q", strings.Join(wrong, ", "), o.ClusterDomain),
	}

	for _, namespace := range o.GatewayNamespaces {
		wrong := validation.IsDNS1123Label(namespace)
		problems = append(problems, option.Unless(wrong == nil,
			"GatewayNamespaces: %s, have %.80q", strings.Join(wrong, ", "), namespace))
	}
	return errors.Join(problems...)
}

func invalidNames(n names.Names) error {
	err := n.Validate()
	return option.Unless(err == nil, "Names: %w", err)
}

func (o Options) where() string {
	if len(o.GatewayNamespaces) == 0 {
		return "in any namespace"
	}
	return "in " + strings.Join(o.GatewayNamespaces, ", ")
}
