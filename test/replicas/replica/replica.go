// Package replica is one replica of an operator with leader election, as a process that a test can
// kill. It records each delivery in a file.
package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

const (
	// Component is the name of the operator.
	Component = "kyma"
	// Namespace has the Service, the Lease and the objects of the runtimes.
	Namespace = "default"
	// Name is in the certificates of the replicas.
	Name = "operator.default.svc"
	// GatewayName is in the certificate of the gateway.
	GatewayName = "gateway.default.svc"
	// PortEvents is the name of the port for events in the Service.
	PortEvents = "events"
	// PortRelay is the name of the port for replicas in the Service.
	PortRelay = "relay"
)

// Settings are the environment of a replica.
type Settings struct {
	// Kubeconfig, CA, Certificate, Key and Record are files.
	Kubeconfig, CA, Certificate, Key, Record string
	// Operator is the name of the Lease and of the Service.
	Operator string
	// Number is that of the replica, from 1. Its address is 192.0.2.<Number>, which tests map to
	// the loopback interface: an API server accepts no loopback address in an EndpointSlice.
	Number int
	// Listen and Relay are ports of the loopback interface.
	Listen, Relay int
	// Relays makes the replica relay.
	Relays bool
	// Lease is the time after which another replica may lead.
	Lease time.Duration
}

// Env returns the environment for [Read].
func (s Settings) Env() []string {
	return []string{
		"KUBECONFIG=" + s.Kubeconfig, "CA_CERT=" + s.CA, "TLS_CERT=" + s.Certificate, "TLS_KEY=" + s.Key,
		"RECORD=" + s.Record, "OPERATOR=" + s.Operator, "NUMBER=" + strconv.Itoa(s.Number),
		"LISTEN=" + strconv.Itoa(s.Listen), "RELAY=" + strconv.Itoa(s.Relay),
		"RELAYS=" + strconv.FormatBool(s.Relays), "LEASE=" + s.Lease.String(),
	}
}

// Read returns the settings of this process.
func Read() (Settings, error) {
	s := Settings{
		Kubeconfig: os.Getenv("KUBECONFIG"), CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"),
		Key: os.Getenv("TLS_KEY"), Record: os.Getenv("RECORD"), Operator: os.Getenv("OPERATOR"),
	}
	var number, listen, relay, relays, lease error
	s.Number, number = strconv.Atoi(os.Getenv("NUMBER"))
	s.Listen, listen = strconv.Atoi(os.Getenv("LISTEN"))
	s.Relay, relay = strconv.Atoi(os.Getenv("RELAY"))
	s.Relays, relays = strconv.ParseBool(os.Getenv("RELAYS"))
	s.Lease, lease = time.ParseDuration(os.Getenv("LEASE"))
	return s, errors.Join(number, listen, relay, relays, lease)
}

// Run serves until ctx ends.
func Run(ctx context.Context) error {
	s, err := Read()
	if err != nil {
		return err
	}
	writer, err := record.NewWriter(s.Record)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	mgr, err := s.manager()
	if err != nil {
		return err
	}
	r := &replica{Settings: s, mgr: mgr, writer: writer, log: log}
	if err := r.setUp(ctx); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func (s Settings) service() types.NamespacedName {
	return types.NamespacedName{Namespace: Namespace, Name: s.Operator}
}

// manager has the times of the guide: with a lease of 15 s a renewal within 10 s, and a retry each
// second.
func (s Settings) manager() (ctrl.Manager, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return nil, err
	}
	renew, retry := s.Lease*2/3, s.Lease/15
	return ctrl.NewManager(config, ctrl.Options{
		Metrics:        metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: s.Operator, LeaderElectionNamespace: Namespace,
		LeaseDuration: &s.Lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Namespaces: map[string]cache.Config{
				Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", s.Operator+"-leader")},
			}},
		}},
	})
}

type replica struct {
	Settings

	mgr    ctrl.Manager
	writer *record.Writer
	log    *slog.Logger
}

func (r *replica) setUp(ctx context.Context) error {
	runtimes, err := controllerruntime.NewRuntimes(ctx, r.mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	files, err := keys.NewFiles(keys.Paths{CA: r.CA, Certificate: r.Certificate, Key: r.Key},
		keys.FilesOptions{})
	if err != nil {
		return err
	}
	roots := listener.RootsFunc(keys.Roots(files))
	relay, err := r.relay(ctx, files, roots)
	if err != nil {
		return err
	}
	behindGateway := listener.FromXFCC(listener.ProxyCertificate(roots, GatewayName), roots, listener.PeerOptions{})
	events, source, err := controllerruntime.RegisterListenerComponent(loopback(r.Listen), Component, behindGateway,
		listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{
			Listener: listener.Options{TLS: keys.ServerTLSConfig(files), Relay: relay, Logger: r.log},
			Source:   controllerruntime.SourceOptions{Elected: r.mgr.Elected(), Handled: r.handled},
		})
	if err != nil {
		return err
	}
	leader, err := controllerruntime.NewLeaderEndpoint(r.mgr.GetClient(), r.service(), fmt.Sprint("192.0.2.", r.Number),
		map[string]int32{PortEvents: int32(r.Listen), PortRelay: int32(r.Relay)},
		controllerruntime.LeaderEndpointOptions{Logger: r.log})
	if err != nil {
		return err
	}
	nothing := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})
	return errors.Join(r.mgr.Add(files), r.mgr.Add(events), r.mgr.Add(leader),
		ctrl.NewControllerManagedBy(r.mgr).Named(Component).WatchesRawSource(source).Complete(nothing))
}

// relay returns nil if the replica does not relay.
func (r *replica) relay(ctx context.Context, files *keys.Files, roots listener.RootsFunc) (*listener.Relay, error) {
	if !r.Relays {
		return nil, nil
	}
	address, err := controllerruntime.LeaderAddress(ctx, r.mgr.GetCache(), r.service(), PortRelay)
	if err != nil {
		return nil, err
	}
	return &listener.Relay{
		Addr:   loopback(r.Relay),
		Server: keys.ServerTLSConfig(files),
		Client: func() (*tls.Config, error) { return keys.ClientTLSConfig(files, Name) },
		Peers:  listener.FromXFCC(listener.ProxyCertificate(roots, Name), roots, listener.PeerOptions{}),
		Leader: func() string { return OnLoopback(address()) },
	}, nil
}

func (r *replica) handled(d core.Delivery, _ int, err error) {
	entry := record.Delivery{Kind: d.Event.KindWord(), Object: d.Event.Watched.Name, At: record.Now()}
	if err != nil {
		entry.Refused = err.Error()
	}
	if err := r.writer.Write(record.Entry{Delivery: &entry}); err != nil {
		panic(err) // Without records, the test proves nothing.
	}
}

// OnLoopback returns an address with the loopback interface as its host, or "".
func OnLoopback(address string) string {
	if _, port, err := net.SplitHostPort(address); err == nil {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return ""
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
