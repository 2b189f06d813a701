// Package operator is an operator as others write one, for the chaos suite: a controller that is
// triggered by a listener, and that records every reconcile in a file. It can be killed at any
// time.
//
// It reconciles one object when an event names it, and all of a runtime on a resync or when it
// starts.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// request names one object of a runtime, or all of them.
type request struct {
	runtime types.NamespacedName
	object  types.NamespacedName // zero: all
}

// Run serves until ctx ends. Its settings are in the environment.
func Run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))

	kubeconfig, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}

	kubeconfig.QPS = -1

	mgr, err := ctrl.NewManager(kubeconfig, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}

	writer, err := record.NewWriter(os.Getenv("RECORD"))
	if err != nil {
		return err
	}

	o := &operator{
		manager: cmp.Or(os.Getenv("MANAGER"), "kyma"), runtime: os.Getenv("RUNTIME"), namespace: os.Getenv("NAMESPACE"),
		writer: writer, log: log,
	}

	if err := errors.Join(o.connect(kubeconfig), o.setUp(ctx, mgr)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// operator reconciles one runtime.
type operator struct {
	manager, runtime, namespace string
	reader                      client.Reader
	writer                      *record.Writer
	log                         *slog.Logger
}

// connect makes the client of the runtime, which is the cluster of the operator, too, because a
// test machine runs one of them. It has no cache, so a look sees the committed state.
func (o *operator) connect(kubeconfig *rest.Config) (err error) {
	o.reader, err = client.New(kubeconfig, client.Options{})
	return err
}

func (o *operator) setUp(ctx context.Context, mgr ctrl.Manager) error {
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}

	fresh, err := fleet.New(fleet.Options{Logger: o.log})
	if err != nil {
		return err
	}

	material, err := keys.NewFiles(keys.Paths{
		CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY"),
	}, keys.FilesOptions{})
	if err != nil {
		return err
	}

	receive := o.listen
	if os.Getenv("NATS") != "" {
		receive = o.consume
	}

	events, source, err := receive(parts{runtimes, fresh, material, mgr.Elected()})
	if err != nil {
		return err
	}

	if err := mgr.Add(events); err != nil {
		return err
	}

	const workers = 4
	return builder.TypedControllerManagedBy[request](mgr).Named(o.manager).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
		WithLogConstructor(func(*request) logr.Logger { return mgr.GetLogger() }).
		WatchesRawSource(source).
		WatchesMetadata(&corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(o.everything)).
		Complete(o)
}

// parts are those that both transports need.
type parts struct {
	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
	material *keys.Files
	elected  <-chan struct{}
}

// listen receives events over HTTP.
func (o *operator) listen(p parts) (manager.Runnable, *controllerruntime.Source[request], error) {
	return controllerruntime.RegisterListenerComponent(os.Getenv("LISTEN"), o.manager,
		listener.FromTLS(listener.PeerOptions{}), listener.SANPinning(p.runtimes), o.requests(p.runtimes),
		controllerruntime.ComponentOptions{
			Listener: listener.Options{TLS: keys.ServerTLSConfig(p.material), Fleet: p.fleet, Logger: o.log},
			Source:   controllerruntime.SourceOptions{Elected: p.elected, Handled: o.handled},
		})
}

// requests maps an event to one object of a runtime, or to the whole runtime.
func (o *operator) requests(runtimes *controllerruntime.Runtimes) controllerruntime.MapFunc[request] {
	return func(ctx context.Context, d core.Delivery) (requests []request, err error) {
		names, err := runtimes.Objects(ctx, d.Runtime)
		if err != nil {
			return nil, err
		}

		for _, name := range names {
			r := request{runtime: name}
			if !d.Event.Resync {
				r.object = d.Event.Watched
			}

			requests = append(requests, r)
		}
		return requests, nil
	}
}

// everything returns the requests of an operator that starts.
func (o *operator) everything(_ context.Context, object client.Object) []request {
	if object.GetName() != o.runtime {
		return nil
	}
	return []request{{runtime: client.ObjectKeyFromObject(object)}}
}

func (o *operator) handled(d core.Delivery, _ int, err error) {
	entry := record.Delivery{Kind: d.Event.KindWord(), Object: d.Event.Watched.Name, At: record.Now()}
	if err != nil {
		entry.Refused = err.Error()
	}

	o.write(record.Entry{Delivery: &entry})
}

func (o *operator) write(entry record.Entry) {
	if err := o.writer.Write(entry); err != nil {
		panic(err) // Without records, nothing that happens here means anything.
	}
}

// wrap adds the place to an error of a look.
func wrap(what string, err error) error { return fmt.Errorf("look at %s: %w", what, err) }
