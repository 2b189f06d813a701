// Lifecyclemanager is a meta operator. It gives remote clusters, the runtimes, a catalog of
// modules. It installs the modules that the users there enable, and corrects changes by others.
// Events start its reconciles, and polling is a slow safety net.
//
// The README explains the code. watching.go contains everything that the events need. The other
// files are as in any operator.
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

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

// leaderElectionID is equal for all replicas, and identifies this operator in its namespace.
const leaderElectionID = "lifecycle-manager.operator.kyma-project.io"

func main() {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil)))
	err := run(ctrl.SetupSignalHandler(), os.Args[1:], os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lifecyclemanager:", err)
		os.Exit(1)
	}
}

// run blocks until ctx ends or something fails. KUBECONFIG, or the pod, names the control plane.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}

	overview := &runtimes.Overview{}
	poll := fleet.Options{PollFresh: s.pollFresh, PollUnproved: s.pollOtherwise, PollOtherwise: s.pollOtherwise}
	poll.Logger = controllerruntime.Logger(ctrl.Log)

	watched, err := fleet.New(poll)
	if err != nil {
		return err
	}

	mgr, err := newManager(s, map[string]http.Handler{
		"/fleet":         statuspage.FleetHandler(watched),
		"/installations": statuspage.InstallationsHandler(overview.Installations),
	})
	if err != nil {
		return err
	}

	watching, err := newWatching(s, mgr, watched, overview)
	if err != nil {
		return err
	}

	err = errors.Join(watching.setUp(), addControllers(watching), mgr.AddHealthzCheck("alive", healthz.Ping))
	if err != nil {
		return err
	}

	return mgr.Start(ctx)
}

// newManager returns a manager for two or more replicas, of which one leads. Metrics and pages need
// TLS, and a token of a service account that may get them.
func newManager(s settings, pages map[string]http.Handler) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}

	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}

	// Where the control plane is its own runtime, it also has the Kyma and the catalog of a user.
	own := cache.ByObject{Namespaces: map[string]cache.Config{s.namespace: {}}}
	return ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1beta2.Kyma{}: own, &v1beta2.Manifest{}: own, &v1beta2.ModuleTemplate{}: own,
		}},
		LeaderElection:                s.leaderElect,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       s.namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        s.probes,
		Metrics: metricsserver.Options{
			BindAddress:    s.metrics,
			SecureServing:  true,
			FilterProvider: controllerruntime.BrowserFilter(filters.WithAuthenticationAndAuthorization),
			ExtraHandlers:  pages,
		},
	})
}

// newScheme returns the kinds of the control plane, and the kinds of the operator in the runtimes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme),
		watcher.AddToScheme(scheme), v1beta2.AddToScheme(scheme))
}
