// Lifecyclemanager is an operator as others are, to which watching of runtimes was added. Its Kymas (operator.kyma-project.io/v1beta2)
// represent runtimes: the annotation skr-domain is the domain of one, and the Secret of the same name and namespace holds its
// kubeconfig, in the key "config".
//
// Begin with watching.go, which is what was added: certificates, the agent in every runtime, and events from there. The rest
// of main.go, and kyma.go, is part of any operator. Its rights are in config/rbac.yaml.
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

// run returns when ctx ends and all has stopped, or when something has failed. The cluster is that of KUBECONFIG, or of the pod.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme), watcher.AddToScheme(scheme)); err != nil {
		return err
	}

	heard, err := fleet.New(fleet.Options{PollFresh: s.pollFresh, PollOtherwise: s.pollOtherwise})
	if err != nil {
		return err
	}

	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		// Two replicas: one reconciles, both listen. The one that does not lead sends runtimes on to the other.
		LeaderElection:                s.leaderElect,
		LeaderElectionID:              "lifecycle-manager.operator.kyma-project.io",
		LeaderElectionNamespace:       s.namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        s.probes,
		Metrics: metricsserver.Options{
			BindAddress: s.metrics, ExtraHandlers: map[string]http.Handler{"/fleet": listener.FleetHandler(heard)},
		},
	})
	if err != nil {
		return err
	}

	if err := errors.Join(watchRuntimes(ctx, mgr, heard, s), mgr.AddHealthzCheck("alive", healthz.Ping)); err != nil {
		return err
	}

	return mgr.Start(ctx)
}
