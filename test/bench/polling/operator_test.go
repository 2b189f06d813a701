package polling_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
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
	// Keys is the key material of its listener, and has the CA of the API servers.
	Keys keys.Paths
	// Server is the URL of the API servers.
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
		settings: kit.Settings[settings](),
		queue:    workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]()),
		source:   controllerruntime.NewSource(requests, controllerruntime.SourceOptions{}),
	}
	for i := range o.Runtimes {
		o.clients = append(o.clients, o.connect(i))
		o.queue.AddAfter(i, rand.N(o.Interval))
	}
	const workers = 16
	for range workers {
		go o.work(ctx)
	}
	address := lab.Must(o.listen(ctx))
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
	reader := o.source.Client(i, core.RuntimeID(kit.RuntimeName(i)), o.clients[i])
	return reader.Get(ctx, client.ObjectKey{Namespace: "kyma-system", Name: "default"}, kyma)
}

func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// connect returns a client for a runtime, with a connection of its own.
func (s settings) connect(i int) client.Client {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kymaKind(), meta.RESTScopeNamespace)
	config := &rest.Config{
		Host: s.Server + "/" + kit.RuntimeName(i), QPS: -1, Dial: new(net.Dialer).DialContext,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.Keys.CA},
	}
	return lab.Must(client.New(config, client.Options{Scheme: runtime.NewScheme(), Mapper: mapper}))
}

// listen starts the listener of an operator with events, and returns its address.
func (o *operator) listen(ctx context.Context) (string, error) {
	if !o.Events {
		return "", nil
	}
	if err := o.source.Start(ctx, o.queue); err != nil {
		return "", err
	}
	material := lab.Must(keys.NewFiles(o.Keys, keys.FilesOptions{}))
	watched := lab.Must(fleet.New(fleet.Options{}))
	socket := lab.Must(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}),
		lab.Pinning(),
		map[core.Manager]core.Handler{manager: o.source},
		listener.Options{Listener: socket, TLS: keys.ServerTLSConfig(material), Fleet: watched, Hooks: listener.Hooks{
			Answered: func(string, core.Manager, int, string, time.Duration) { o.requests.Add(1) },
		}}))
	go func() {
		if err := events.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "listener:", err)
		}
	}()
	return socket.Addr().String(), nil
}

// requests returns the number of the runtime of a delivery.
func requests(_ context.Context, d core.Delivery) ([]int, error) {
	i, err := kit.RuntimeNumber(string(d.Runtime))
	return []int{i}, err
}

const manager = core.Manager("lifecycle-manager")
