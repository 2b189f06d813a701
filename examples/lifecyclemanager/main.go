// Lifecyclemanager is an operator that watches its runtimes. Its Kymas
// (operator.kyma-project.io/v1beta2) represent runtimes. The annotation skr-domain is the domain of
// a runtime. The Secret with the name and namespace of the Kyma has its kubeconfig in the key
// "config".
//
// Start with watching.go: it has the parts that watching adds. The other files are part of any
// operator. config/rbac.yaml has its rights.
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
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func main() {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil)))
	err := run(ctrl.SetupSignalHandler(), os.Args[1:], os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lifecyclemanager:", err)
		os.Exit(1)
	}
}

// run blocks until ctx ends or something fails. KUBECONFIG, or the pod, names the cluster.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	runtimes, err := fleet.New(fleet.Options{PollFresh: s.pollFresh, PollOtherwise: s.pollOtherwise})
	if err != nil {
		return err
	}
	mgr, err := newManager(s, listener.RequireToken(s.fleetToken, listener.FleetHandler(runtimes)))
	if err != nil {
		return err
	}
	watching := &watching{settings: s, mgr: mgr, fleet: runtimes}
	if err := errors.Join(watching.setUp(ctx), mgr.AddHealthzCheck("alive", healthz.Ping)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// newManager returns a manager for two or more replicas: one reconciles, all listen. A replica
// without the lease answers 503, so that runtimes find the other one.
func newManager(s settings, fleetHandler http.Handler) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme), watcher.AddToScheme(scheme))
	if err != nil {
		return nil, err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	return ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                s.leaderElect,
		LeaderElectionID:              "lifecycle-manager.operator.kyma-project.io",
		LeaderElectionNamespace:       s.namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        s.probes,
		Metrics: metricsserver.Options{
			BindAddress: s.metrics, ExtraHandlers: map[string]http.Handler{"/fleet": fleetHandler},
		},
	})
}
