// Multicluster is an operator of ConfigMaps in many clusters, built with multicluster-runtime, like
// the example kubeconfig of that project. It caches no cluster, because agents report changes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/adapters/multicluster"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func main() {
	addr := flag.String("addr", ":8443", "`address` of the listener")
	namespace := flag.String("namespace", "default", "`namespace` of the Secrets with kubeconfigs")
	files := keys.Paths{}
	flag.StringVar(&files.CA, "ca", "ca.crt", "`file` with the CAs of the agents")
	flag.StringVar(&files.Certificate, "cert", "tls.crt", "`file` with the certificate of the listener")
	flag.StringVar(&files.Key, "key", "tls.key", "`file` with its private key")
	flag.Parse() // The flags include -kubeconfig.
	log.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))

	if err := run(ctrl.SetupSignalHandler(), ctrl.GetConfigOrDie(), *addr, *namespace, files, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "multicluster:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(
	ctx context.Context, config *rest.Config, addr, namespace string, files keys.Paths, out io.Writer,
) error {
	local, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	if err != nil {
		return err
	}

	material, err := keys.NewFiles(files, keys.FilesOptions{})
	if err != nil {
		return err
	}

	// Each cluster serves ConfigMaps, so the mapper of this cluster makes the discovery of other
	// clusters unnecessary.
	own := func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return local.GetRESTMapper(), nil }
	kubeconfigs := remote.NewKubeconfigs(local.GetAPIReader(), "kubeconfig", client.ObjectKeyFromObject,
		remote.KubeconfigOptions{Scheme: local.GetScheme(), Mapper: own})
	provider := multicluster.NewProvider(kubeconfigs, multicluster.ProviderOptions{Namespace: namespace})

	mgr, err := mcmanager.WithMultiCluster(local, provider)
	if err != nil {
		return err
	}

	// The annotation skr-domain of a Secret registers the domain of the agent.
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))

	secrets, err := controllerruntime.NewRuntimes(local.GetCache(), secret, controllerruntime.ByName,
		controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}

	events, err := controllerruntime.AddListener(local, controllerruntime.ListenerConfig{
		Addr: addr, Senders: controllerruntime.MutualTLS(material), Verifier: listener.SANPinning(secrets),
	})
	if err != nil {
		return err
	}

	source, err := controllerruntime.SourceFor(
		events, "configmaps", multicluster.Enqueue, controllerruntime.SourceOptions{})
	if err != nil {
		return err
	}

	reconciler := mcreconcile.Func(func(ctx context.Context, r mcreconcile.Request) (reconcile.Result, error) {
		cluster, err := mgr.GetCluster(ctx, r.ClusterName)
		if err != nil {
			return reconcile.Result{}, err
		}

		object := &corev1.ConfigMap{}
		err = cluster.GetClient().Get(ctx, r.NamespacedName, object)
		fmt.Fprintln(out, r, object.Data["text"])
		return reconcile.Result{}, client.IgnoreNotFound(err)
	})
	return errors.Join(provider.SetupWithManager(ctx, mgr),
		multicluster.Complete(mgr, mcbuilder.ControllerManagedBy(mgr).Named("configmaps"), multicluster.Objects{
			Source: source, Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Reconciler: reconciler,
		}), mgr.Start(ctx))
}
