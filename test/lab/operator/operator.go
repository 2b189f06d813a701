// Package operator is the operator of the laboratory: a process that a test starts, kills and starts
// again. It has a controller that a listener or a consumer of NATS triggers, and records every
// delivery and every reconcile in a file.
//
// It reconciles one object when an event names it, and all of a runtime on a resync or when it
// starts.
package operator

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

// Variable is the environment variable with the [Settings] of an operator.
const Variable = "LAB_OPERATOR"

// Settings are the settings of an operator.
type Settings struct {
	// Kubeconfig and Record are files.
	Kubeconfig, Record string
	Keys               keys.Paths
	// Poll is the time between two reads of the keys. Default: the default of [keys.FilesOptions].
	Poll    time.Duration
	Manager string
	// Listen is the address of the listener. NATS contains the URLs of servers. With NATS, there is
	// no listener.
	Listen, NATS string
	// StreamReplicas is the number of NATS servers that have each message. Default: one.
	StreamReplicas int
	// Runtime is the object that represents the runtime, and Namespace contains its objects.
	Runtime, Namespace string
	// Fleet means that the operator has all runtimes with an object in Namespace. It reads nothing.
	// It records whole runtimes, and its status every [Interval].
	Fleet bool
	// Gateway is the name in the certificate of a gateway, which sends the certificate of a runtime in
	// a header. By default runtimes connect directly.
	Gateway string
	// Replica describes one of several replicas that elect a leader. Default: a single replica.
	Replica *Replica
}

// Environ returns the environment of an operator.
func (s Settings) Environ() []string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // It has texts and numbers only.
	}
	return []string{Variable + "=" + string(text)}
}

// Main runs an operator if this process has the settings of one, and otherwise the tests. It returns the exit code.
func Main(tests func() int) int {
	if os.Getenv(Variable) == "" {
		return tests()
	}
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(ctx context.Context) error {
	o := &operator{}
	level := slog.LevelDebug
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &o.Settings); err != nil {
		return err
	}
	if o.Fleet {
		level = slog.LevelWarn
	}

	o.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}

	kubeconfig.QPS = -1
	// The cluster of the operator is also the runtime, because a test machine runs one of them. The
	// reader has no cache, so that a reconcile sees the committed state.
	if o.reader, err = client.New(kubeconfig, client.Options{}); err != nil {
		return err
	}
	if o.mgr, err = ctrl.NewManager(kubeconfig, o.managerOptions()); err != nil {
		return err
	}
	if o.writer, err = record.NewWriter(o.Record); err != nil {
		return err
	}
	if err := o.setUp(ctx); err != nil {
		return err
	}

	return o.mgr.Start(ctx)
}

// operator reconciles one runtime, or a fleet.
type operator struct {
	Settings

	mgr    ctrl.Manager
	reader client.Client
	source *controllerruntime.Source[request]
	writer *record.Writer
	log    *slog.Logger

	runtimes *controllerruntime.Runtimes
	fleet    *fleet.Fleet
	files    *keys.Files
	resyncs  atomic.Int64 // that a fleet delivered
}

// request names one object of a runtime, or all of them.
type request struct {
	runtime types.NamespacedName
	object  types.NamespacedName // zero: all
}

func (o *operator) managerOptions() ctrl.Options {
	opts := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	if o.Fleet {
		opts.Cache.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	if r := o.Replica; r != nil {
		// The times of the guide: with a lease of 15 s a renewal within 10 s, and a retry each second.
		renew := r.Lease * 2 / 3
		retry := r.Lease / 15
		opts.LeaderElection = true
		opts.LeaderElectionID = r.Service
		opts.LeaderElectionNamespace = lab.Namespace
		opts.LeaseDuration = &r.Lease
		opts.RenewDeadline = &renew
		opts.RetryPeriod = &retry
		opts.Cache.ByObject = map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: {
			Namespaces: map[string]cache.Config{lab.Namespace: {
				FieldSelector: fields.OneTermEqualSelector("metadata.name", r.EndpointSlice()),
			}},
		}}
	}

	return opts
}

func (o *operator) setUp(ctx context.Context) (err error) {
	o.runtimes, err = controllerruntime.NewRuntimes(o.mgr.GetCache(), lab.MetadataOf(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	if o.fleet, err = fleet.New(fleet.Options{Logger: o.log}); err != nil {
		return err
	}
	if o.files, err = keys.NewFiles(o.Keys, keys.FilesOptions{Poll: o.Poll}); err != nil {
		return err
	}

	receive := o.listen
	if o.NATS != "" {
		receive = o.consume
	}

	events, source, err := receive(ctx)
	if err != nil {
		return err
	}

	o.source = source
	if o.Fleet {
		go o.report()
	}

	const workers = 4
	return errors.Join(o.mgr.Add(o.files), o.mgr.Add(events), o.lead(),
		builder.TypedControllerManagedBy[request](o.mgr).Named(o.Manager).
			WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
			WithLogConstructor(func(*request) logr.Logger { return o.mgr.GetLogger() }).
			WatchesRawSource(source).
			WatchesMetadata(&corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(o.everything)).
			Complete(o))
}

// requests maps an event to one object of a runtime, or to the whole runtime.
func (o *operator) requests(ctx context.Context, d core.Delivery) (requests []request, err error) {
	names, err := o.runtimes.Objects(ctx, d.Runtime)
	if err != nil {
		return nil, err
	}

	for _, name := range names {
		r := request{runtime: name}
		if !d.Event.Resync && !o.Fleet {
			r.object = d.Event.Watched
		}

		requests = append(requests, r)
	}

	return requests, nil
}

// everything returns the requests of an operator that starts.
func (o *operator) everything(_ context.Context, object client.Object) []request {
	if !o.Fleet && object.GetName() != o.Runtime {
		return nil
	}
	return []request{{runtime: client.ObjectKeyFromObject(object)}}
}

// Reconcile reads the requested object or runtime, no more, and records the state.
func (o *operator) Reconcile(ctx context.Context, r request) (reconcile.Result, error) {
	look := record.Look{
		Runtime: r.runtime.Name, Object: r.object.Name, Started: record.Now(), Versions: make(map[string]string),
	}
	if o.Fleet {
		o.write(record.Entry{Look: &look})
		return reconcile.Result{}, nil
	}

	there := o.source.Client(r, core.RuntimeID(r.runtime.Name), o.reader)
	read := o.readObject

	if look.Object == "" {
		read = o.readAll
	}
	if err := read(ctx, there, r, look.Versions); err != nil {
		return reconcile.Result{}, fmt.Errorf("reading %q of %s: %w", r.object, o.Namespace, err)
	}

	o.write(record.Entry{Look: &look})
	return reconcile.Result{}, nil
}

func (o *operator) readObject(ctx context.Context, there client.Reader, r request, versions map[string]string) error {
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(lab.WidgetKind())
	err := there.Get(ctx, r.object, &object)
	if err == nil {
		versions[object.Name] = object.ResourceVersion
	}
	if apierrors.IsNotFound(err) {
		return nil // The record says that the object is absent.
	}

	return err
}

func (o *operator) readAll(ctx context.Context, there client.Reader, _ request, versions map[string]string) error {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(lab.WidgetKind())
	err := there.List(ctx, &list, client.InNamespace(o.Namespace))

	for i := range list.Items {
		versions[list.Items[i].Name] = list.Items[i].ResourceVersion
	}

	return err
}

func (o *operator) handled(h hook.Handled) {
	d := h.Delivery
	err := h.Err
	if o.Fleet {
		if err == nil && d.Event.Resync {
			o.resyncs.Add(1)
		}
		return
	}

	entry := record.Delivery{Kind: d.Event.KindWord(), Object: d.Event.Watched.Name, At: record.Now()}
	if err != nil {
		entry.Refused = err.Error()
	}

	o.write(record.Entry{Delivery: &entry})
}

func (o *operator) write(entry record.Entry) {
	if err := o.writer.Write(entry); err != nil {
		panic(err) // Without records, a test proves nothing.
	}
}

// Interval is the time between two reports of the status.
const Interval = 500 * time.Millisecond

func (o *operator) report() {
	for range time.Tick(Interval) {
		o.write(record.Entry{Status: o.status()})
	}
}

func (o *operator) status() *record.Status {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s := &record.Status{
		Runtimes: map[fleet.State]int{}, Resyncs: map[string]int64{"agent": o.resyncs.Load()},
		Heap: memory.HeapAlloc, Stack: memory.StackInuse,
	}

	select {
	case <-o.mgr.Elected():
		s.Leading = true
	default:
	}

	if summary := o.fleet.Summaries()[core.Manager(o.Manager)]; summary != nil {
		for condition, n := range summary.Runtimes {
			s.Runtimes[condition.State] += n
		}

		s.ToCome = summary.ResyncsToCome
		for cause, n := range summary.Resyncs {
			s.Resyncs[string(cause)] = n
			s.Resyncs["agent"] -= n
		}
	}

	return s
}

// Replica contains the settings of one of several replicas.
type Replica struct {
	// Service is the name of the Lease and of the Service.
	Service string
	// Number is the number of the replica, from 1. Its address is 192.0.2.<Number>, which tests map
	// to the loopback interface: an API server accepts no loopback address in an EndpointSlice.
	Number int
	// Lease is the time after which another replica may lead.
	Lease time.Duration
}

// EndpointSlice returns the name of the EndpointSlice with the address of the leader.
func (r *Replica) EndpointSlice() string { return r.Service + "-leader" }

const (
	// Name is the name in the certificates of the replicas.
	Name = "operator.default.svc"
	// PortEvents is the name of the port of the Service for runtimes.
	PortEvents = "events"
)

func (o *operator) sourceOptions() controllerruntime.SourceOptions {
	return controllerruntime.SourceOptions{Elected: o.mgr.Elected(), Handled: o.handled}
}

// listen receives events over HTTP.
func (o *operator) listen(context.Context) (manager.Runnable, *controllerruntime.Source[request], error) {
	roots := keys.Roots(o.files)
	peers := listener.FromTLS(roots, listener.PeerOptions{})

	if o.Gateway != "" {
		peers = listener.FromXFCC(listener.ProxyCertificate(roots, o.Gateway), roots, listener.PeerOptions{})
	}
	return controllerruntime.RegisterListenerComponent(controllerruntime.ListenerConfig{
		Addr: o.Listen, Senders: controllerruntime.BehindGateway(peers), Verifier: listener.SANPinning(o.runtimes),
		Fleet: o.fleet, Logger: o.log, Options: listener.Options{TLS: keys.ServerTLSConfig(o.files)},
	}, core.Manager(o.Manager), o.requests, o.sourceOptions())
}

func (o *operator) service() types.NamespacedName {
	return types.NamespacedName{Namespace: lab.Namespace, Name: o.Replica.Service}
}

// lead writes the address of this replica into the EndpointSlice while it leads.
func (o *operator) lead() error {
	if o.Replica == nil {
		return nil
	}

	ports := map[string]int32{PortEvents: int32(netip.MustParseAddrPort(o.Listen).Port())}
	leader, err := controllerruntime.NewLeaderEndpoint(o.mgr.GetClient(), o.service(),
		controllerruntime.ReplicaEndpoint{
			Operator: o.Replica.Service, Address: fmt.Sprint("192.0.2.", o.Replica.Number), Ports: ports,
		},
		controllerruntime.LeaderEndpointOptions{Logger: o.log})
	if err != nil {
		return err
	}

	return o.mgr.Add(leader)
}

// consume receives events from NATS servers.
func (o *operator) consume(context.Context) (manager.Runnable, *controllerruntime.Source[request], error) {
	material, err := o.files.Material()
	if err != nil {
		return nil, nil, err
	}

	// It connects now, or when the server is there. The connection is closed with the process.
	conn, err := nats.Connect(o.NATS, nats.Secure(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: material.Roots, Certificates: []tls.Certificate{*material.Certificate},
	}), nats.CustomInboxPrefix("_INBOX.operator."+o.Manager), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, nil, err
	}

	source := controllerruntime.NewSource(o.requests, o.sourceOptions())
	name := core.Manager(o.Manager)
	source.Follow(o.fleet, name)
	consumer, err := natsjetstream.NewConsumer(conn, listener.SANPinning(o.runtimes),
		map[core.Manager]core.Handler{name: source},
		natsjetstream.Options{Peer: lab.MappedPeer, Fleet: o.fleet, Logger: o.log, Stream: o.stream})

	return consumer, source, err
}

func (o *operator) stream(name core.Manager) jetstream.StreamConfig {
	stream := natsjetstream.StreamConfig(name)
	stream.Replicas = max(o.StreamReplicas, 1)
	return stream
}
