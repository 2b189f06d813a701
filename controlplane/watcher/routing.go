package watcher

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// routing makes and checks the routes of one kind. The reconciler has one, or none without routes.
type routing interface {
	kind() string
	newGateway() client.Object
	newRoute() client.Object
	// buildRoute returns the route of a Watcher through all gateways that a selector finds, without
	// owner, and its way for messages. When there can be none, the error is a [routeProblem].
	buildRoute(
		ctx context.Context, reader client.Reader, selector labels.Selector, w *v1beta2.Watcher, m core.Manager,
	) (client.Object, string, error)
	// checkRoute returns a [routeProblem] unless the gateways have accepted the stored route.
	checkRoute(ctx context.Context, reader client.Reader, route client.ObjectKey) error
}

func prefixes(manager core.Manager) []string {
	versions := []contract.Version{contract.V1, contract.V2, contract.V3}
	paths := make([]string, len(versions))
	for i, version := range versions {
		paths[i] = "/" + string(version) + "/" + string(manager) + "/"
	}
	return paths
}
