package polling_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is its key material: a client of the API servers, and the server of its listener.
	Keys keys.Paths
	// Server is the address of the API servers.
	Server string
	// Runtimes is the number of runtimes.
	Runtimes int
	// Interval is the time between two looks at a runtime, when nothing happens.
	Interval time.Duration
	// Events means that the operator also listens for events.
	Events bool
}

// operator looks at runtimes: at each once in an interval, and after an event.
type operator struct {
	settings

	clients  []client.Client
	queue    workqueue.TypedRateLimitingInterface[int]
	source   *controllerruntime.Source[int]
	requests atomic.Int64
}

// operate prints the address of its listener, and then the number of requests to it, when asked.
func operate(ctx context.Context) error {
	o := &operator{
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]()),
		source: controllerruntime.NewSource(requests, controllerruntime.SourceOptions{}),
	}
	if err := kit.Settings(&o.settings); err != nil {
		return err
	}
	for i := range o.Runtimes {
		connected, err := o.connect(i)
		if err != nil {
			return err
		}
		o.clients = append(o.clients, connected)
		o.queue.AddAfter(i, rand.N(o.Interval))
	}
	const workers = 16
	for range workers {
		go o.work(ctx)
	}
	address, err := o.listen(ctx)
	if err != nil {
		return err
	}
	fmt.Println(address)
	return kit.Answer(func(string) any { return o.requests.Load() })
}

// work looks at the runtimes of the queue.
func (o *operator) work(ctx context.Context) {
	for {
		i, shutdown := o.queue.Get()
		if shutdown {
			return
		}
		if err := o.look(ctx, i); err != nil {
			fmt.Fprintln(os.Stderr, "look:", err)
		}
		o.queue.Done(i)
	}
}

// look reads the object of a runtime, which is the least that a reconcile does.
func (o *operator) look(ctx context.Context, i int) error {
	defer o.queue.AddAfter(i, o.Interval)
	kyma := &unstructured.Unstructured{}
	kyma.SetGroupVersionKind(kymaKind())
	reader := o.source.Client(i, core.RuntimeID(runtimeName(i)), o.clients[i])
	return reader.Get(ctx, client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// connect returns a client for a runtime, with a connection of its own.
func (s settings) connect(i int) (client.Client, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{
		Host: "https://" + s.Server + "/" + runtimeName(i), QPS: -1, Dial: new(net.Dialer).DialContext,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.Keys.CA, CertFile: s.Keys.Certificate, KeyFile: s.Keys.Key},
	}
	return client.New(config, client.Options{Scheme: runtime.NewScheme(), Mapper: mapper})
}

// listen starts the listener of an operator with events, and returns its address.
func (o *operator) listen(ctx context.Context) (string, error) {
	if !o.Events {
		return "", nil
	}
	if err := o.source.Start(ctx, o.queue); err != nil {
		return "", err
	}
	material, err := keys.NewFiles(o.Keys, keys.FilesOptions{})
	if err != nil {
		return "", err
	}
	watched, err := fleet.New(fleet.Options{})
	if err != nil {
		return "", err
	}
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	events, err := listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}),
		listener.SANPinning(listener.DomainsFunc(domain)),
		map[core.Manager]core.Handler{manager: o.source},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched, Hooks: listener.Hooks{
			Answered: func(string, core.Manager, int, string, time.Duration) { o.requests.Add(1) },
		}})
	if err != nil {
		return "", err
	}
	go func() {
		if err := events.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "listener:", err)
		}
	}()
	return socket.Addr().String(), nil
}

func domain(_ context.Context, id core.RuntimeID, _ *core.WatchEvent) (string, error) {
	return lab.RuntimeDomain(id), nil
}

// requests returns the number of the runtime of a delivery.
func requests(_ context.Context, d core.Delivery) ([]int, error) {
	i, err := strconv.Atoi(strings.TrimPrefix(string(d.Runtime), runtimePrefix))
	return []int{i}, err
}

const (
	manager       = core.Manager("lifecycle-manager")
	runtimePrefix = "runtime-"
)

func runtimeName(i int) string { return fmt.Sprint(runtimePrefix, i) }
