package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// operatorVariable is the environment variable that makes this program an operator.
const operatorVariable = "FLEETLAB_OPERATOR"

func isOperator() bool { return os.Getenv(operatorVariable) != "" }

// operatorConfig are the settings of an operator.
type operatorConfig struct {
	Kubeconfig string        `json:"kubeconfig"`
	Namespace  string        `json:"namespace"`
	Address    string        `json:"address"`
	Files      keys.Paths    `json:"files"`
	Lease      time.Duration `json:"lease"`
	Status     time.Duration `json:"status"`
	Poll       time.Duration `json:"poll"`
	Profile    string        `json:"profile"`
	Variant    variant       `json:"variant"`
}

// The files of an operator that its parent has opened.
const (
	reconcilesFile = 3
	statusFile     = 4
)

// status is the report of an operator about itself.
type status struct {
	Listening bool `json:"listening"`
	Leading   bool `json:"leading"`
	// Runtimes has the number of runtimes in each state of freshness.
	Runtimes map[fleet.State]int `json:"runtimes"`
	// Resyncs has the number of resyncs by cause. The cause of those that agents send is "agent".
	Resyncs map[string]int64 `json:"resyncs"`
	// ToCome is the number of resyncs that the fleet has not delivered yet.
	ToCome     int    `json:"toCome"`
	Handshakes int64  `json:"handshakes"`
	Heap       uint64 `json:"heap"`
	Stack      uint64 `json:"stack"`
}

// operator is an operator with a listener and a fleet, as an author would write it.
type operator struct {
	config   operatorConfig
	fleet    *fleet.Fleet
	events   *listener.Listener
	elected  <-chan struct{}
	requests atomic.Int64 // TLS handshakes that began
	resyncs  atomic.Int64 // that were delivered
	looks    *looks
}

// runOperator serves until its standard input is closed, or it is killed.
func runOperator(ctx context.Context) error {
	o := &operator{looks: newLooks(os.NewFile(reconcilesFile, "reconciles"))}
	if err := json.Unmarshal([]byte(os.Getenv(operatorVariable)), &o.config); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // It ends with the parent.
		stop()
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	mgr, err := o.newManager()
	if err != nil {
		return err
	}
	if err := o.setUp(ctx, mgr, log); err != nil {
		return err
	}
	go o.profileOnSignal()
	go o.looks.flushOften()
	go o.report(os.NewFile(statusFile, "status"))
	return mgr.Start(ctx)
}

func (o *operator) newManager() (ctrl.Manager, error) {
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", o.config.Kubeconfig)
	if err != nil {
		return nil, err
	}
	const renew, retry = 3, 8
	return ctrl.NewManager(kubeconfig, ctrl.Options{
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{o.config.Namespace: {}}},
		LeaderElection: true, LeaderElectionID: lease, LeaderElectionNamespace: o.config.Namespace,
		LeaseDuration: &o.config.Lease, RenewDeadline: new(o.config.Lease * renew / (renew + 1)),
		RetryPeriod: new(o.config.Lease / retry),
	})
}

// setUp embeds the listener as the README does, with a fleet.
func (o *operator) setUp(ctx context.Context, mgr ctrl.Manager, log *slog.Logger) (err error) {
	o.elected = mgr.Elected()
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{})
	if err != nil {
		return err
	}
	files, err := keys.NewFiles(o.config.Files, keys.FilesOptions{Logger: log, Poll: o.config.Poll})
	if err != nil {
		return err
	}
	if o.fleet, err = fleet.New(fleet.Options{Logger: log}); err != nil {
		return err
	}
	events, source, err := controllerruntime.RegisterListenerComponent(o.config.Address, string(manager),
		listener.FromTLSWithRoots(keys.Roots(files), listener.PeerOptions{}), listener.SANPinning(runtimes),
		controllerruntime.EnqueueByRuntime(runtimes), controllerruntime.ComponentOptions{
			Listener: listener.Options{TLS: o.serverTLS(files), Fleet: o.fleet, Logger: log},
			Source:   controllerruntime.SourceOptions{Logger: log, Handled: o.handled},
		})
	if err != nil {
		return err
	}
	o.events = events
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return errors.Join(mgr.Add(files), mgr.Add(events), builder.ControllerManagedBy(mgr).Named(string(manager)).
		For(object, builder.OnlyMetadata).WatchesRawSource(source).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(reconcile.Func(o.reconcile)))
}

// workers is the number of concurrent reconciles.
const workers = 10

// reconcile asks for no requeue: without polling, a lost event stays lost.
func (o *operator) reconcile(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
	began := now()
	number, err := strconv.Atoi(strings.TrimPrefix(r.Name, "rt-"))
	const seventh = 7
	if lost := o.config.Variant.Lossy && number%seventh == 0; err == nil && !lost {
		o.looks.write(number, began)
	}
	return reconcile.Result{}, nil
}

func (o *operator) handled(d core.Delivery, _ int, err error) {
	if err == nil && d.Event.Resync {
		o.resyncs.Add(1)
	}
}

// serverTLS returns the configuration of the listener, with the changes of the variant. It counts
// handshakes.
func (o *operator) serverTLS(files *keys.Files) *tls.Config {
	config := keys.ServerTLSConfig(files)
	next := config.GetConfigForClient
	var changed atomic.Pointer[tls.Config]
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		o.requests.Add(1)
		chosen, err := next(hello)
		if err == nil && changed.Swap(chosen) != chosen {
			o.config.Variant.change(chosen)
		}
		return chosen, err
	}
	return config
}

// change applies the variant to the configuration of a server.
func (v variant) change(config *tls.Config) {
	config.SessionTicketsDisabled = v.FullHandshakes
	if v.X25519 {
		config.CurvePreferences = []tls.CurveID{tls.X25519}
	}
	if v.Tickets {
		config.SetSessionTicketKeys([][32]byte{{1}})
	}
}

// report writes the status at the interval of the settings.
func (o *operator) report(to io.Writer) {
	encoder := json.NewEncoder(to)
	for range time.Tick(o.config.Status) {
		if err := encoder.Encode(o.status()); err != nil {
			return
		}
	}
}

func (o *operator) status() status {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s := status{
		Listening: o.events.Ready() == nil, Leading: isClosed(o.elected), Runtimes: map[fleet.State]int{},
		Resyncs: map[string]int64{}, Handshakes: o.requests.Load(), Heap: memory.HeapAlloc, Stack: memory.StackInuse,
	}
	s.Resyncs["agent"] = o.resyncs.Load()
	if summary := o.fleet.Summaries()[manager]; summary != nil {
		for condition, n := range summary.Runtimes {
			s.Runtimes[condition.State] += n
		}
		s.ToCome = summary.ResyncsToCome
		for cause, n := range summary.Resyncs {
			s.Resyncs[cause] = n
			s.Resyncs["agent"] -= n
		}
	}
	return s
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// profileOnSignal writes profiles of memory upon SIGUSR1.
func (o *operator) profileOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	for range signals {
		runtime.GC()
		for _, name := range []string{"heap", "goroutine"} {
			if err := o.writeProfile(name); err != nil {
				fmt.Fprintln(os.Stderr, "profile:", err)
			}
		}
	}
}

func (o *operator) writeProfile(name string) error {
	file, err := os.Create(filepath.Join(o.config.Profile, name+"-"+strconv.Itoa(os.Getpid())+".pprof"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup(name).WriteTo(file, 0), file.Close())
}

// look is one reconcile as it travels to the parent.
type look struct {
	Runtime uint32
	Began   instant
}

// lookSize is the size of a look in bytes.
const lookSize = 12

// looks writes reconciles to the parent. It is safe for concurrent use.
type looks struct {
	mu     sync.Mutex
	buffer []byte
	to     io.Writer
}

func newLooks(to io.Writer) *looks { return &looks{to: to} }

func (l *looks) write(number int, began instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buffer = binary.LittleEndian.AppendUint32(l.buffer, uint32(number))
	l.buffer = binary.LittleEndian.AppendUint64(l.buffer, uint64(began))
}

// flushOften flushes until the parent is gone.
func (l *looks) flushOften() {
	for range time.Tick(20 * time.Millisecond) {
		if l.flush() != nil {
			return
		}
	}
}

func (l *looks) flush() error {
	l.mu.Lock()
	buffer := l.buffer
	l.buffer = nil
	l.mu.Unlock()
	if len(buffer) == 0 {
		return nil
	}
	_, err := l.to.Write(buffer)
	return err
}

// readLooks calls visit with each look until the operator ends.
func readLooks(from io.Reader, visit func(look)) {
	var record [lookSize]byte
	for {
		if _, err := io.ReadFull(from, record[:]); err != nil {
			return
		}
		visit(look{
			binary.LittleEndian.Uint32(record[:]), instant(binary.LittleEndian.Uint64(record[4:])),
		})
	}
}
