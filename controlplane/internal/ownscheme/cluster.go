// Package ownscheme lets the controllers of this module run in a controller manager with other Go
// types for their kinds in its scheme, or none.
package ownscheme

import (
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Cluster returns mgr if its scheme has the types of objects with the same kinds as the scheme that
// add makes, and with no other kind. A client cannot distinguish two kinds of one type. Otherwise
// Cluster adds a cluster with that scheme to mgr and returns the cluster, which has its own cache
// of all namespaces.
func Cluster(
	mgr manager.Manager, add func(*runtime.Scheme) error, objects ...client.Object,
) (cluster.Cluster, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, err
	}

	differs := func(object client.Object) bool {
		have, _, err := mgr.GetScheme().ObjectKinds(object)
		want, _, ownErr := scheme.ObjectKinds(object)
		return err != nil || ownErr != nil || !slices.Equal(have, want)
	}
	if !slices.ContainsFunc(objects, differs) {
		return mgr, nil
	}

	beside, err := cluster.New(mgr.GetConfig(), func(o *cluster.Options) {
		o.Scheme = scheme
		o.HTTPClient = mgr.GetHTTPClient()
		o.Logger = mgr.GetLogger()
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mgr.GetRESTMapper(), nil }
	})
	if err != nil {
		return nil, err
	}

	return beside, mgr.Add(beside)
}
