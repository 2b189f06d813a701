package runtimes_test

import (
	"context"
	"errors"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// ExampleSetUp is the whole control-plane side of an operator. Clusters represent the runtimes,
// and Secrets of the same names have the kubeconfigs.
func ExampleSetUp() {
	_ = setUpRuntimes // Called with the manager of the operator, the fleet and the logger of its listener.
	// Output:
}

func setUpRuntimes(mgr ctrl.Manager, watched *fleet.Fleet, image, address string, log *slog.Logger) error {
	// They are stored in every cluster, so they must never change.
	own := names.Names{Group: "fleet.example.com"}.WithDefaults()
	cluster := &metav1.PartialObjectMetadata{}
	cluster.SetGroupVersionKind(schema.GroupVersionKind{Group: own.Group, Version: "v1", Kind: "Cluster"})
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return err
	}
	set, err := certificates.New(direct, certificates.Parts{
		Name:        types.NamespacedName{Namespace: "fleet-system", Name: "watcher"},
		DNSNames:    []string{"listener.fleet.example.com"},
		Unconfirmed: certificates.FromFleet(watched, 0),
	}, certificates.Options{Names: own, Logger: log})
	if err != nil {
		return err
	}
	agent := installation.Parts{Image: image, ControlPlane: address}
	installer, err := installation.New(agent, installation.Options{
		Names: own, Owner: own.Group, Logger: log,
	})
	if err != nil {
		return err
	}
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		domain := object.GetAnnotations()[own.DomainAnnotation]
		return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
	}
	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{})
	parts := runtimes.Parts{
		Object: cluster, Identify: identify, Connect: kubeconfigs, Certificates: set, Installer: installer,
	}
	return errors.Join(watcher.SetUp(mgr, watcher.Options{Names: own, Routing: watcher.NoRouting}),
		runtimes.SetUp(mgr, parts, runtimes.Options{Fleet: watched}))
}
