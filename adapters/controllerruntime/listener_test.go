package controllerruntime_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/fleet/fleettest"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

// A runtime that is refused has a line in the log of the controller manager, and nothing else was
// added to it by hand.
func TestAddListener(t *testing.T) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	serving := must(ca.Server("operator", testpki.Options{}))
	stranger := must(ca.Client("runtime-1", testpki.Options{}))
	volume := testpki.NewVolume(t.TempDir())
	reloaded := make(chan struct{}, 1)
	if err := volume.Write(testpki.Files(serving, ca)); err != nil {
		t.Fatal(err)
	}

	bundle, cert, key := volume.Paths()
	material := must(keys.NewFiles(keys.Paths{CA: bundle, Certificate: cert, Key: key}, keys.FilesOptions{
		Poll: time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(keys.Generation) { reloaded <- struct{}{} }},
	}))
	refuse := core.VerifierFunc(func(context.Context, core.Peer, *core.WatchEvent) error {
		return listener.Forbidden("san_mismatch", errors.New("not registered"))
	})
	socket := must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	log := &records{}
	mgr := newManager(t, log)
	events := must(controllerruntime.AddListener(mgr, controllerruntime.ListenerConfig{
		Senders: controllerruntime.MutualTLS(material), Verifier: refuse, Options: listener.Options{Listener: socket},
	}))
	source := must(controllerruntime.SourceFor(events, "my-operator", byWatched, controllerruntime.SourceOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		check(t, <-ended)
	}()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer queue.ShutDown()
	check(t, source.Start(ctx, queue))
	pair := must(tls.X509KeyPair(stranger.CertPEM, stranger.KeyPEM))
	sender := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
	}}}
	defer sender.CloseIdleConnections()
	deadline := time.Now().Add(2 * time.Minute)
	for status := 0; status != http.StatusForbidden; {
		if time.Now().After(deadline) {
			t.Fatalf("status %d, want 403", status)
		}
		status = post(t, sender, "https://"+socket.Addr().String()+"/v2/my-operator/event")
	}

	for !log.has("san_mismatch") {
		if time.Now().After(deadline) {
			t.Fatalf("the refusal is not in the log of the controller manager: %q", log.lines)
		}
	}

	if err := volume.Write(testpki.Files(must(ca.Server("operator", testpki.Options{})), ca)); err != nil {
		t.Fatal(err)
	}

	select {
	case <-reloaded:
	case <-time.After(time.Minute):
		t.Error("the files were not read again")
	}
}

// deafSocket is a socket without connections. In virtual time, a real one would stop the clock.
type deafSocket struct {
	once sync.Once
	done chan struct{}
}

func newDeafSocket() *deafSocket { return &deafSocket{done: make(chan struct{})} }

func (s *deafSocket) Accept() (net.Conn, error) {
	<-s.done
	return nil, net.ErrClosed
}

func (s *deafSocket) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

func (s *deafSocket) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8082} }

// configOf returns that of a listener whose requests come from memory.
func configOf(name, addr string) controllerruntime.ListenerConfig {
	return controllerruntime.ListenerConfig{
		Name: name, Addr: addr, Senders: controllerruntime.BehindGateway(listenertest.Peers()),
		Verifier: listener.InsecureAllowAll(),
	}
}

func forManager(
	events *controllerruntime.Listener, name core.Manager, mapFunc controllerruntime.MapFunc[string],
) (*stringSource, error) {
	return controllerruntime.SourceFor(events, name, mapFunc, controllerruntime.SourceOptions{})
}

// setUpFaults are the forgotten and the wrong steps that the set-up refuses. The table in the guide
// lists the mistakes that a user can make.
func setUpFaults(t *testing.T) map[string]func(mgr manager.Manager) error {
	t.Helper()

	ca := must(testpki.NewCA("ca", testpki.Options{}))
	serving := must(ca.Server("operator", testpki.Options{}))
	own := controllerruntime.MutualTLS(must(keys.NewMaterial(ca.PEM, serving.CertPEM, serving.KeyPEM)))
	runtimes := newRuntimes(t, newFakeCache(t), controllerruntime.ByName)
	watched := must(fleet.New(fleet.Options{}))

	with := func(change func(*controllerruntime.ListenerConfig)) func(manager.Manager) error {
		return func(mgr manager.Manager) error {
			c := configOf("", "")
			change(&c)
			_, err := controllerruntime.AddListener(mgr, c)
			return err
		}
	}

	second := func(first, second controllerruntime.ListenerConfig) func(manager.Manager) error {
		return func(mgr manager.Manager) error {
			must(controllerruntime.AddListener(mgr, first))
			_, err := controllerruntime.AddListener(mgr, second)
			return err
		}
	}

	source := func(name core.Manager, mapFunc controllerruntime.MapFunc[string]) func(manager.Manager) error {
		return func(mgr manager.Manager) error {
			_, err := forManager(must(controllerruntime.AddListener(mgr, configOf("", ""))), name, mapFunc)
			return err
		}
	}

	return map[string]func(mgr manager.Manager) error{
		"want a controller manager": func(manager.Manager) error {
			_, err := controllerruntime.AddListener(nil, configOf("", ""))
			return err
		},
		"peers are nil": with(func(c *controllerruntime.ListenerConfig) { c.Senders = controllerruntime.Senders{} }),
		"CA bundle is nil": with(func(c *controllerruntime.ListenerConfig) {
			c.Senders = controllerruntime.MutualTLS((*keys.Files)(nil))
		}),
		"verifier is nil": with(func(c *controllerruntime.ListenerConfig) { c.Verifier = nil }),
		"domains for SAN pinning are nil": with(func(c *controllerruntime.ListenerConfig) {
			c.Verifier = listener.SANPinning((*controllerruntime.Runtimes)(nil))
		}),
		"runtimes of the verifier Registered are nil": with(func(c *controllerruntime.ListenerConfig) {
			c.Verifier = controllerruntime.Registered(nil)
		}),
		"want host:port":                with(func(c *controllerruntime.ListenerConfig) { c.Addr = "8443" }),
		"Runtimes is set without Fleet": with(func(c *controllerruntime.ListenerConfig) { c.Runtimes = runtimes }),
		"want Fleet instead":            with(func(c *controllerruntime.ListenerConfig) { c.Options.Fleet = watched }),
		"want Addr instead":             with(func(c *controllerruntime.ListenerConfig) { c.Options.Addr = ":8443" }),
		"want Logger instead":           with(func(c *controllerruntime.ListenerConfig) { c.Options.Logger = slog.New(slog.DiscardHandler) }),
		"MutualTLS and Options.TLS are both set": with(func(c *controllerruntime.ListenerConfig) {
			c.Senders = own
			c.Options.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
		}),

		"this controller manager already has a listener with this name": second(configOf("", ":8443"), configOf("", ":9443")),
		`listener "a" already has address ":8443"`:                      second(configOf("a", ":8443"), configOf("b", ":8443")),
		`listener "a" already has address ""`:                           second(configOf("a", ""), configOf("b", "127.0.0.1:8082")),
		`listener "a" already has address "localhost:8443"`:             second(configOf("a", "localhost:8443"), configOf("b", "127.0.0.1:8443")),
		`listener "a" already has address "[::]:443"`:                   second(configOf("a", "[::]:443"), configOf("b", "192.0.2.1:https")),

		"not a DNS-1123 label":          source("Clusters", byWatched),
		`source of manager "": manager`: source("", byWatched),
		`"clusters": source has no map`: source("clusters", nil),
		"want a listener of AddListener": func(manager.Manager) error {
			_, err := forManager(nil, "clusters", byWatched)
			return err
		},
		"the handler is nil": func(mgr manager.Manager) error {
			return must(controllerruntime.AddListener(mgr, configOf("", ""))).Handle("clusters", core.HandlerFunc(nil))
		},
		"channel of events is nil": func(mgr manager.Manager) error {
			return must(controllerruntime.AddListener(mgr, configOf("", ""))).Handle("clusters",
				controllerruntime.ToChannel(nil, byRequest, controllerruntime.SourceOptions{}))
		},
		"the listener has started already": func(mgr manager.Manager) error {
			events := must(controllerruntime.AddListener(mgr, configOf("", "")))
			must(forManager(events, "clusters", byWatched))
			// It stops immediately, as the context has ended. The set-up has ended, too.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			check(t, events.Start(ctx))
			_, err := forManager(events, "modules", byWatched)
			return err
		},
		`already receives the events of manager "clusters"`: func(mgr manager.Manager) error {
			events := must(controllerruntime.AddListener(mgr, configOf("", "")))
			shared := must(forManager(events, "clusters", byWatched))
			return events.Handle("modules", shared)
		},
		`listener "a" with the same fleet already receives the events of this manager`: func(mgr manager.Manager) error {
			first := configOf("a", ":8443")
			second := configOf("b", ":9443")
			first.Fleet = watched
			second.Fleet = watched
			must(forManager(must(controllerruntime.AddListener(mgr, first)), "clusters", byWatched))
			_, err := forManager(must(controllerruntime.AddListener(mgr, second)), "clusters", byWatched)
			return err
		},
	}
}

func byRequest(context.Context, core.Delivery) ([]reconcile.Request, error) {
	return []reconcile.Request{{NamespacedName: owner("one")}}, nil
}

// A step that is forgotten, or done twice, is an error of the set-up that names the step.
func TestSetUpRefusesWhatIsForgotten(t *testing.T) {
	for want, setUp := range setUpFaults(t) {
		err := setUp(newManager(t, &records{}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// The control of the table: what is not forgotten is accepted, also two of each part.
func TestSetUpAcceptsSeveralOfEach(t *testing.T) {
	mgr := newManager(t, &records{})
	other := newManager(t, &records{})
	runtimes := newRuntimes(t, newFakeCache(t), controllerruntime.ByName)
	one := configOf("one", "127.0.0.1:8443")
	two := configOf("two", "127.0.0.2:8443")
	one.Fleet = must(fleet.New(fleet.Options{}))
	two.Fleet = must(fleet.New(fleet.Options{}))
	one.Runtimes = runtimes
	two.Runtimes = runtimes
	free := configOf("free", "127.0.0.1:0")
	socket := configOf("socket", "127.0.0.1:8443")
	random := configOf("random", "127.0.0.1:0")
	socket.Options.Listener = newDeafSocket()
	for _, c := range []controllerruntime.ListenerConfig{one, two, free, socket, random} {
		events := must(controllerruntime.AddListener(mgr, c))
		for _, name := range []core.Manager{"clusters", "clusters", "modules"} {
			must(forManager(events, name, byWatched))
		}
	}

	must(controllerruntime.AddListener(other, one))
}

// A call that failed leaves nothing: the second one with the same name is accepted.
func TestARefusedListenerLeavesNoName(t *testing.T) {
	mgr := newManager(t, &records{})
	broken := configOf("", "")
	broken.Verifier = nil
	if _, err := controllerruntime.AddListener(mgr, broken); err == nil {
		t.Error("no error without a verifier")
	}

	must(controllerruntime.AddListener(mgr, configOf("", "")))
}

// A component without a part that it needs is an error of the set-up, which names the part.
func TestRegisterListenerComponentRefuses(t *testing.T) {
	t.Parallel()
	for want, tc := range map[string]struct {
		component core.Manager
		mapFunc   controllerruntime.MapFunc[string]
		verifier  core.Verifier
	}{
		`listener component "": `:         {"", byWatched, listener.InsecureAllowAll()},
		`listener component "Operator": `: {"Operator", byWatched, listener.InsecureAllowAll()},
		"DNS-1123 label":                  {core.Manager(strings.Repeat("a", 64)), byWatched, listener.InsecureAllowAll()},
		"map function":                    {"operator", nil, listener.InsecureAllowAll()},
		"verifier is nil":                 {"operator", byWatched, core.VerifierFunc(nil)},
	} {
		c := configOf("", "")
		c.Verifier = tc.verifier
		events, source, err := controllerruntime.RegisterListenerComponent(c, tc.component, tc.mapFunc, controllerruntime.SourceOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || events != nil || source != nil {
			t.Errorf("have %v, %v and error %v, want one that says %q", events, source, err, want)
		}
	}
}

// startFaults are the steps that the set-up cannot see. The controller manager ends with an error.
func startFaults(t *testing.T) map[string]func(mgr manager.Manager, events *controllerruntime.Listener) {
	t.Helper()

	nothing := reconcile.TypedFunc[string](func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil })
	return map[string]func(mgr manager.Manager, events *controllerruntime.Listener){
		"no controller takes its events: call SourceFor": func(manager.Manager, *controllerruntime.Listener) {},
		`manager "clusters": source already serves a running controller: create one source for each controller, with another call of SourceFor`: func(
			mgr manager.Manager, events *controllerruntime.Listener,
		) {
			shared := must(forManager(events, "clusters", byWatched))
			for _, name := range []string{t.Name() + "-a", t.Name() + "-b"} {
				check(t, builder.TypedControllerManagedBy[string](mgr).Named(name).WatchesRawSource(shared).Complete(nothing))
			}
		},
	}
}

// A step of the set-up that was forgotten ends the controller manager with an error that names the
// step.
func TestTheManagerEndsWithWhatIsForgotten(t *testing.T) {
	for want, setUp := range startFaults(t) {
		mgr := newManager(t, &records{})
		c := configOf("", "")
		c.Options.Listener = newDeafSocket()
		setUp(mgr, must(controllerruntime.AddListener(mgr, c)))
		err := mgr.Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the manager ended with %v, want an error with %q", err, want)
		}
	}
}

// logFaults are the steps that only the log can name, each with its lines in the first two minutes.
// The tests run in virtual time.
func logFaults() map[string]struct {
	run   func(t *testing.T, ctx context.Context, logger *slog.Logger)
	lines int
} {
	quiet := func(logger *slog.Logger) controllerruntime.ListenerConfig {
		c := configOf("events", "")
		c.Logger = logger
		c.Options.Listener = newDeafSocket()
		return c
	}

	elected := make(chan struct{})
	close(elected)
	start := func(t *testing.T, ctx context.Context, events *controllerruntime.Listener) {
		t.Helper()
		check(t, events.Start(ctx))
	}

	type fault = struct {
		run   func(t *testing.T, ctx context.Context, logger *slog.Logger)
		lines int
	}
	return map[string]fault{
		// One of two controllers has no source, on a replica that leads: a line each 30 s.
		`started this source, so each event is answered with 503: pass the source to WatchesRawSource" listener=events manager=clusters source="2 of 2"`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				events, first, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched,
					controllerruntime.SourceOptions{Elected: elected})
				check(t, err)
				must(controllerruntime.SourceFor(events, "clusters", byWatched, controllerruntime.SourceOptions{Elected: elected}))
				started(t, first, newQueue(t))
				start(t, ctx, events)
			}, 3,
		},
		// It is not known whether this replica leads: one line.
		`A replica that does not lead logs this line too, unless Elected is set" listener=events manager=clusters source="1 of 1"`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				events, _, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched,
					controllerruntime.SourceOptions{})
				check(t, err)
				start(t, ctx, events)
			}, 1,
		},
		`the listener of its events has not, so no events arrive: pass the listener to mgr.Add" listener=events manager=clusters`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				_, source, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched,
					controllerruntime.SourceOptions{})
				check(t, err)
				check(t, source.Start(ctx, newQueue(t)))
				<-ctx.Done()
			}, 1,
		},
		`no receiver has used this source in the first 30 s of its controller.`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{Logger: logger})
				check(t, source.Start(ctx, newQueue(t)))
				<-ctx.Done()
			}, 1,
		},
		`the fleet of this listener expects no runtime and forgets none: set Runtimes together with Fleet`: {
			func(t *testing.T, _ context.Context, logger *slog.Logger) {
				t.Helper()

				c := quiet(logger)
				c.Fleet = must(fleet.New(fleet.Options{}))
				_, _, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{})
				check(t, err)
			}, 1,
		},
		`the channel is full, so the sender keeps the event: pass the channel to source.Channel of a controller, or make the channel larger" manager=clusters size=1`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				handler := controllerruntime.ToChannel(make(chan event.GenericEvent, 1), byRequest,
					controllerruntime.SourceOptions{Elected: elected, Logger: logger})
				for ctx.Err() == nil {
					_ = handler.Handle(ctx, core.Delivery{Manager: "clusters", Runtime: "skr-1"}) // A sender tries again.
					<-time.After(10 * time.Second)
				}
			}, 2,
		},
		// Two controllers have exchanged their sources.
		`each source to WatchesRawSource of the controller that calls its Client, at the beginning of each reconcile" listener=events manager=clusters`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				events, clusters, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched,
					controllerruntime.SourceOptions{})
				check(t, err)
				modules := must(forManager(events, "modules", byWatched))
				runControllers(t, ctx, map[*stringSource]*stringSource{clusters: modules, modules: clusters})
			}, 1,
		},
		`neither the listener nor the source of this component has started within a minute: pass the listener to mgr.Add, and the source to WatchesRawSource of a controller" listener=events manager=clusters`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				_, _, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched, controllerruntime.SourceOptions{})
				check(t, err)
				<-ctx.Done()
			}, 1,
		},
		// A source of NewSource has a receiver, such as a consumer of NATS, and no controller.
		`no controller has started this source, so it enqueues no events: pass the source to WatchesRawSource`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{Logger: logger, Elected: elected})
				for ctx.Err() == nil {
					_ = source.Ready() // A receiver asks again.
					<-time.After(time.Second)
				}
			}, 1,
		},
		`the metrics list managers that have no handler here: correct Managers in the options of the metrics, unless another receiver with the same metrics serves these managers" named=[cluster] served="[clusters modules]"`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				c := quiet(logger)
				c.Options.Hooks.Managers = []core.Manager{"clusters", "cluster"}
				events, _, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{})
				check(t, err)
				must(forManager(events, "modules", byWatched))
				start(t, ctx, events)
			}, 1,
		},
		`the key files are in use but are not read again, so a renewed certificate is never used: call Start, or pass the files to mgr.Add`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				ca := must(testpki.NewCA("ca", testpki.Options{}))
				volume := testpki.NewVolume(t.TempDir())
				check(t, volume.Write(testpki.Files(must(ca.Server("operator", testpki.Options{})), ca)))
				bundle, cert, key := volume.Paths()
				files := must(keys.NewFiles(keys.Paths{CA: bundle, Certificate: cert, Key: key}, keys.FilesOptions{Logger: logger}))
				for ctx.Err() == nil {
					must(files.Material())
					<-time.After(time.Second)
				}
			}, 1,
		},
		`a slow cluster keeps its share of the regular workers, because no slow lane runs: call SetUpSlow" cluster=a`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				regular := slowLanes().Regular
				check(t, regular.Start(ctx, newQueue(t)))
				reconcileTwice(t, ctx, logger, regular)
			}, 1,
		},
		`clusters have no share of the workers: the lane is not a source of its controller, so also pass it to WatchesRawSource`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				reconcileTwice(t, ctx, logger, slowLanes().Regular)
			}, 1,
		},
		`the endpoint of the leader was not added within a minute, so the Service has no endpoint: pass the endpoint to mgr.Add" service=kcp-system/my-operator-events`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				newLeaderEndpoint(t, logger)
				<-ctx.Done()
			}, 1,
		},
		// Agents have the name "clusters" only: each runtime is stale for the other name.
		`freshness of a runtime changed" runtime=skr-1 manager=modules from=unknown to=stale`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				c := quiet(logger)
				c.Fleet = must(fleet.New(fleet.Options{Logger: logger}))
				c.Runtimes = newRuntimes(t, newFakeCache(t, kyma("skr-1", nil, nil)), controllerruntime.ByName)
				events, source, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{})
				check(t, err)
				started(t, source, newQueue(t))
				started(t, must(forManager(events, "modules", byWatched)), newQueue(t))
				fleettest.Set(c.Fleet, "skr-1", "clusters", fleet.Condition{State: fleet.Fresh})
				start(t, ctx, events)
			}, 1,
		},
		// A name without a source.
		`reason=unknown_manager`: {
			func(t *testing.T, ctx context.Context, logger *slog.Logger) {
				t.Helper()

				events, _, err := controllerruntime.RegisterListenerComponent(quiet(logger), "clusters", byWatched, controllerruntime.SourceOptions{})
				check(t, err)
				sender := listenertest.Forwarder(events, core.Peer{ID: "skr-1"})
				if err := sender.Forward(ctx, "modules", core.NewBatch(core.WatchEvent{Resync: true})); !errors.Is(err, core.ErrUnknownManager) {
					t.Errorf("error %v, want an unknown manager", err)
				}
			}, 1,
		},
	}
}

func newLeaderEndpoint(t *testing.T, logger *slog.Logger) manager.Runnable {
	t.Helper()
	return must(controllerruntime.NewLeaderEndpoint(fake.NewClientBuilder().Build(),
		types.NamespacedName{Namespace: "kcp-system", Name: "my-operator-events"},
		controllerruntime.ReplicaEndpoint{Operator: "my-operator", Address: "192.0.2.1", Ports: map[string]int32{"events": 8082}},
		controllerruntime.LeaderEndpointOptions{Logger: logger}))
}

// A controller manager that does not lead has the endpoint and never starts it.
func TestTheLogIsSilentAboutAnAddedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&out, nil))
		check(t, newManager(t, &records{}).Add(newLeaderEndpoint(t, logger)))
		<-time.After(time.Hour)
		if out.Len() > 0 {
			t.Errorf("have lines, want none:\n%s", &out)
		}
	})
}

// runControllers runs a controller for each source, and gives each source an event every 10 s. The
// reconciler of a controller calls Client of the source that it is mapped to.
func runControllers(t *testing.T, ctx context.Context, clients map[*stringSource]*stringSource) {
	t.Helper()

	queues := make(map[*stringSource]workqueue.TypedRateLimitingInterface[string])
	for source := range clients {
		queues[source] = newQueue(t)
		started(t, source, queues[source])
	}

	for n := 0; ctx.Err() == nil; n++ {
		for source, calls := range clients {
			check(t, source.Handle(ctx, delivery("skr-1", fmt.Sprint(source, n))))
			for _, r := range drain(queues[source]) {
				calls.Client(r, "skr-1", nil)
			}
		}
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
		}
	}
}

// slowLanes returns the lanes of a cluster that takes 5 s for each reconcile.
func slowLanes() *remote.Lanes[string] {
	wait := reconcile.TypedFunc[string](func(context.Context, string) (reconcile.Result, error) {
		<-time.After(5 * time.Second)
		return reconcile.Result{}, nil
	})
	return remote.NewLanes(func(string) string { return "a" }, wait, remote.LanesOptions[string]{})
}

func reconcileTwice(t *testing.T, ctx context.Context, logger *slog.Logger, lane *remote.Lane[string]) {
	t.Helper()
	for range 2 {
		_, err := lane.Reconcile(logf.IntoContext(ctx, logr.FromSlogHandler(logger.Handler())), "object")
		check(t, err)
	}
}

// A forgotten step that no error can show has a line in the log, as often as it should.
func TestTheLogNamesWhatIsForgotten(t *testing.T) {
	for want, fault := range logFaults() {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 119*time.Second)
				defer cancel()
				var out bytes.Buffer
				fault.run(t, ctx, slog.New(slog.NewTextHandler(&out, nil)))
				synctest.Wait()
				if n := strings.Count(out.String(), want); n != fault.lines {
					t.Errorf("%d lines with %q, want %d:\n%s", n, want, fault.lines, &out)
				}
			})
		})
	}
}

// What is complete, or belongs to a replica that does not lead, has none of these lines.
func TestTheLogIsSilentAboutACompleteSetUp(t *testing.T) {
	for name, leads := range map[string]bool{"leads": true, "does not lead": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var out bytes.Buffer
				elected := make(chan struct{})
				c := configOf("", "")
				c.Options.Listener = newDeafSocket()
				c.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
				events, source, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{Elected: elected})
				check(t, err)
				if leads {
					close(elected)
					time.AfterFunc(20*time.Second, func() { started(t, source, newQueue(t)) })
				}

				check(t, events.Start(ctx))
				if out.Len() > 0 {
					t.Errorf("have lines, want none:\n%s", &out)
				}
			})
		})
	}
}

// A reconcile may end before it calls Client, and the controller is the right one nevertheless. So
// is one with a queue that is never empty, and one whose reconciler never calls Client.
func TestTheLogIsSilentAboutTheRightController(t *testing.T) {
	for name, run := range map[string]func(source *stringSource, queue workqueue.TypedRateLimitingInterface[string], n int){
		"one of two reconciles calls Client": func(source *stringSource, queue workqueue.TypedRateLimitingInterface[string], n int) {
			for _, r := range drain(queue) {
				if n%2 == 0 {
					source.Client(r, "skr-1", nil)
				}
			}
		},
		"the queue is long": func(source *stringSource, _ workqueue.TypedRateLimitingInterface[string], _ int) {
			source.Client("another", "skr-1", nil)
		},
		"no reconcile calls Client": func(_ *stringSource, queue workqueue.TypedRateLimitingInterface[string], _ int) { drain(queue) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				logger := slog.New(slog.NewTextHandler(&out, nil))
				source := controllerruntime.NewSource(byWatched, controllerruntime.SourceOptions{Logger: logger})
				queue := newQueue(t)
				started(t, source, queue)
				for n := range 100 {
					check(t, source.Handle(t.Context(), delivery("skr-1", fmt.Sprint("object-", n))))
					run(source, queue, n)
					<-time.After(20 * time.Second)
				}

				if out.Len() > 0 {
					t.Errorf("have lines, want none:\n%s", &out)
				}
			})
		})
	}
}

// taker is a handler that notes what it got.
type taker struct {
	err   error
	ready error
	got   []string
}

func (k *taker) Handle(_ context.Context, d core.Delivery) error {
	k.got = append(k.got, d.Event.Watched.Name)
	return k.err
}

func (k *taker) Ready() error { return k.ready }

// Each controller of a manager gets every event. A permanent failure of one hides no other.
func TestSeveralControllersOfOneManager(t *testing.T) {
	t.Parallel()

	notReady := fmt.Errorf("%w: has not started", core.ErrNotReady)
	for name, tc := range map[string]struct {
		first, second taker
		both          bool
		want          error
		permanent     bool
	}{
		"both take it":            {both: true},
		"one fails":               {first: taker{err: errFake}, both: true, want: errFake},
		"the other fails":         {second: taker{err: errFake}, both: true, want: errFake},
		"one fails for ever":      {first: taker{err: hopeless{errFake}}, both: true, want: hopeless{errFake}, permanent: true},
		"one for ever, one once":  {first: taker{err: hopeless{errFake}}, second: taker{err: errBad}, both: true, want: errBad},
		"the second is not ready": {second: taker{ready: notReady}, want: core.ErrNotReady},
		"the first is not ready":  {first: taker{ready: notReady}, want: core.ErrNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			handler := controllerruntime.Several(&tc.first, &tc.second)
			err := handler.Handle(t.Context(), delivery("skr-1", "a"))
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || core.IsPermanent(err) != tc.permanent {
				t.Errorf("have error %v, permanent %v, want %v", err, core.IsPermanent(err), tc.want)
			}

			want := []string(nil)
			if tc.both {
				want = []string{"a"}
			}
			if diff := cmp.Diff([][]string{want, want}, [][]string{tc.first.got, tc.second.got}); diff != "" {
				t.Errorf("got (-want +have):\n%s", diff)
			}
		})
	}
}

// Two controllers of one manager and one of another get their events of one listener. An event of
// the first is refused until both have started, and is then in both queues.
func TestOneListenerSeveralControllers(t *testing.T) {
	t.Parallel()

	events, first, err := controllerruntime.RegisterListenerComponent(configOf("", ""), "clusters", byWatched, controllerruntime.SourceOptions{})
	check(t, err)
	second := must(controllerruntime.SourceFor(events, "clusters",
		func(_ context.Context, d core.Delivery) ([]core.RuntimeID, error) {
			return []core.RuntimeID{d.Runtime}, nil
		},
		controllerruntime.SourceOptions{}))
	modules := must(forManager(events, "modules", byWatched))

	runtime := listenertest.Forwarder(events, core.Peer{ID: "skr-1"})
	send := func(to core.Manager, name string) error {
		change := core.WatchEvent{}
		change.Watched.Name = name
		change.WatchedGVK.Kind = "ConfigMap"
		change.WatchedGVK.Version = "v1"
		return runtime.Forward(t.Context(), to, core.NewBatch(change))
	}

	queue := newQueue(t)
	moduleQueue := newQueue(t)
	runtimeQueue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[core.RuntimeID]())
	t.Cleanup(runtimeQueue.ShutDown)

	started(t, first, queue)
	started(t, modules, moduleQueue)
	if err := send("clusters", "a"); !errors.Is(err, core.ErrNotReady) || queue.Len() != 0 {
		t.Errorf("error %v and %d requests before the second controller has started, want not ready and none", err, queue.Len())
	}

	check(t, send("modules", "m"))
	started(t, second, runtimeQueue)
	check(t, errors.Join(send("clusters", "a"), send("clusters", "a")))
	if diff := cmp.Diff([][]string{{"skr-1:a"}, {"skr-1:m"}}, [][]string{drain(queue), drain(moduleQueue)}); diff != "" {
		t.Errorf("requests (-want +have):\n%s", diff)
	}
	if n := runtimeQueue.Len(); n != 1 {
		t.Errorf("%d requests of the second controller, want 1", n)
	}
	if err := send("others", "a"); !errors.Is(err, core.ErrUnknownManager) {
		t.Errorf("error %v of a manager without a source, want %v", err, core.ErrUnknownManager)
	}
}

// The fleet of a listener expects its runtimes for each manager with a source. The managers are not
// configured a second time. The sources follow the fleet.
func TestTheFleetExpectsTheManagersOfTheListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watched := must(fleet.New(fleet.Options{}))
		objects := newFakeCache(t, kyma("skr-1", nil, nil), kyma("skr-2", nil, nil))
		runtimes := must(controllerruntime.NewRuntimes(objects, kyma("", nil, nil), controllerruntime.ByName,
			controllerruntime.RuntimesOptions{Expected: func(object client.Object, manager core.Manager) bool {
				return manager == "clusters" || object.GetName() == "skr-1"
			}}))
		c := configOf("", "")
		c.Fleet = watched
		c.Runtimes = runtimes
		c.Options.Listener = newDeafSocket()
		events, source, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{})
		check(t, err)
		queue := newQueue(t)
		started(t, source, queue)
		started(t, must(forManager(events, "clusters", byWatched)), newQueue(t))
		started(t, must(forManager(events, "modules", byWatched)), newQueue(t))

		ctx, cancel := context.WithTimeout(t.Context(), 65*time.Second)
		defer cancel()
		time.AfterFunc(time.Second, func() {
			beating(watched, "skr-2", "clusters", false)
			beating(watched, "skr-2", "clusters", true)
		})
		check(t, events.Start(ctx))
		states := map[string]fleet.State{}
		watched.Range(func(s fleet.Status) bool {
			states[string(s.Manager+"/")+string(s.Runtime)] = s.State
			return true
		})
		want := map[string]fleet.State{"clusters/skr-1": fleet.Stale, "clusters/skr-2": fleet.Stale, "modules/skr-1": fleet.Stale}
		if diff := cmp.Diff(want, states); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if got := drain(queue); !slices.Equal(got, []string{"skr-2:"}) {
			t.Errorf("the source enqueued %q, want the runtime that stopped being fresh", got)
		}
	})
}

// A channel gets what fits. Nothing waits long for the rest, and no event is acknowledged in vain.
func TestToChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leads := make(chan struct{})
		channel := make(chan event.GenericEvent, 1)
		told := handled{}
		handler := controllerruntime.ToChannel(channel, byRequest, controllerruntime.SourceOptions{Elected: leads, Handled: told.add})
		d := core.Delivery{Runtime: "skr-1", Manager: "clusters"}
		if err := handler.Handle(t.Context(), d); !errors.Is(err, core.ErrNotReady) || len(channel) > 0 {
			t.Errorf("error %v and %d events of a replica that does not lead", err, len(channel))
		}

		close(leads)
		check(t, handler.Handle(t.Context(), d))

		begun := time.Now()
		for range 300 { // A batch.
			if err := handler.Handle(t.Context(), d); !errors.Is(err, core.ErrNotReady) || core.IsPermanent(err) {
				t.Fatalf("error %v of a full channel, want not ready", err)
			}
		}

		if took := time.Since(begun); took > 200*time.Millisecond {
			t.Errorf("a batch waited %v for a full channel, want 100 ms", took)
		}
		if name := (<-channel).Object.GetName(); name != "one" {
			t.Errorf("event of %q, want one", name)
		}

		check(t, handler.Handle(t.Context(), d))

		<-time.After(time.Minute)
		time.AfterFunc(50*time.Millisecond, func() { <-channel })
		check(t, handler.Handle(t.Context(), d)) // There is room in time.
		<-time.After(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := handler.Handle(ctx, d); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v after the sender has gone", err)
		}
		if told[0] != "skr-1 0 not ready: another replica leads" || told[1] != "skr-1 1 <nil>" {
			t.Errorf("the hook got %q", told[:2])
		}
	})
	for name, handler := range map[string]core.Handler{
		"without Elected": controllerruntime.ToChannel(make(chan event.GenericEvent, 1), byRequest, controllerruntime.SourceOptions{}),
		"without channel": controllerruntime.ToChannel(nil, byRequest, controllerruntime.SourceOptions{}),
		"without map":     controllerruntime.ToChannel(make(chan event.GenericEvent, 1), nil, controllerruntime.SourceOptions{}),
	} {
		if err := handler.Handle(t.Context(), core.Delivery{}); err == nil {
			t.Errorf("%s: an event is acknowledged", name)
		}
	}
}

// A listener of a controller manager tells a channel whether this replica leads.
func TestAChannelGetsElected(t *testing.T) {
	channel := make(chan event.GenericEvent, 1)
	mgr := newManager(t, &records{})
	events := must(controllerruntime.AddListener(mgr, configOf("", "127.0.0.1:0")))
	handler := controllerruntime.ToChannel(channel, byRequest, controllerruntime.SourceOptions{})
	check(t, events.Handle("clusters", handler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	<-mgr.Elected()
	check(t, handler.Handle(t.Context(), core.Delivery{}))
	cancel()
	check(t, <-ended)
}

// TestExportedFunctionsAreEasyToCall holds that no exported function has more than four parameters,
// or two strings side by side: nothing would tell which is which.
func TestExportedFunctionsAreEasyToCall(t *testing.T) {
	t.Parallel()

	seen := 0
	for _, name := range must(filepath.Glob("*.go")) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}

		file := must(parser.ParseFile(token.NewFileSet(), name, nil, 0))
		for _, declared := range file.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok || !function.Name.IsExported() {
				continue
			}

			seen++
			var parameters []string
			for _, field := range function.Type.Params.List {
				typeName := ""
				if identifier, ok := field.Type.(*ast.Ident); ok {
					typeName = identifier.Name
				}

				for range max(len(field.Names), 1) {
					parameters = append(parameters, typeName)
				}
			}

			if len(parameters) > 4 {
				t.Errorf("%s has %d parameters, want at most 4", function.Name.Name, len(parameters))
			}

			for i := range parameters[:max(len(parameters)-1, 0)] {
				if parameters[i] == "string" && parameters[i+1] == "string" {
					t.Errorf("%s has two strings side by side", function.Name.Name)
				}
			}
		}
	}

	if seen < 20 {
		t.Errorf("%d exported functions are found, want more", seen)
	}
}

// TestTheGuideNamesWhatIsForgotten holds that the table in the guide quotes messages that exist.
func TestTheGuideNamesWhatIsForgotten(t *testing.T) {
	t.Parallel()

	guide := string(must(os.ReadFile(testcache.Path("../../docs/guide/embedding.md"))))
	_, table, found := strings.Cut(guide, "<!-- table: forgotten steps -->\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile("(?m)^\\| .*`([^`]+)` \\|$").FindAllStringSubmatch(table, -1)
	if !found || len(rows) < 15 {
		t.Fatalf("the table has %d rows with a message, want at least 15", len(rows))
	}

	var said strings.Builder
	for want := range setUpFaults(t) {
		said.WriteString(want + "\n")
	}

	for want := range startFaults(t) {
		said.WriteString(want + "\n")
	}

	for want := range logFaults() {
		said.WriteString(want + "\n")
	}

	for _, row := range rows {
		if !strings.Contains(said.String(), row[1]) {
			t.Errorf("no test has the message %q of the guide", row[1])
		}
	}
}

// A listener that is mounted in another server takes events without Start.
func TestAListenerInAnotherServer(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	c := configOf("", "")
	c.Logger = slog.New(slog.NewTextHandler(&out, nil))
	events, _, err := controllerruntime.RegisterListenerComponent(c, "clusters", byWatched, controllerruntime.SourceOptions{})
	check(t, err)
	if events.Addr() != nil || !errors.Is(events.Ready(), core.ErrNotReady) || events.NeedLeaderElection() {
		t.Errorf("address %v and %v before the start", events.Addr(), events.Ready())
	}

	check(t, events.Handle("open", core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })))
	err = listenertest.Forwarder(events, core.Peer{ID: "skr-1"}).Forward(t.Context(), "open", core.NewBatch(core.WatchEvent{Resync: true}))
	check(t, err)
	if _, err := io.Copy(io.Discard, &out); err != nil || !errors.Is(events.Ready(), core.ErrNotReady) {
		t.Errorf("the listener is ready, and has not started: %v", err)
	}
}
