package polling_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
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
)

// settings are those of an operator, which is a process of its own.
type settings struct {
	// Keys is a folder with key material.
	Keys string `json:"keys"`
	// Server is the address of the API servers.
	Server string `json:"server"`
	// Runtimes is the number of runtimes.
	Runtimes int `json:"runtimes"`
	// Interval is the time between two looks at a runtime, when nothing happens.
	Interval time.Duration `json:"interval"`
	// Events means that the operator also listens for events.
	Events bool `json:"events"`
}

// used has the resources that an operator has used since its start.
type used struct {
	Processor time.Duration `json:"processor"`
	// Requests counts the requests to its listener.
	Requests int64 `json:"requests"`
}

// operator looks at runtimes: at each once in an interval, and after an event.
type operator struct {
	settings

	clients  []client.Client
	queue    workqueue.TypedRateLimitingInterface[int]
	source   *controllerruntime.Source[int]
	requests atomic.Int64
}

// serve runs an operator. It prints the address of its listener, and then its use of resources for
// each line of standard input.
func (s settings) serve(ctx context.Context) error {
	o := &operator{
		settings: s, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]()),
		source: controllerruntime.NewSource(requests, controllerruntime.SourceOptions{}),
	}
	for i := range s.Runtimes {
		connected, err := s.connect(i)
		if err != nil {
			return err
		}
		o.clients = append(o.clients, connected)
		o.queue.AddAfter(i, rand.N(s.Interval))
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
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := json.NewEncoder(os.Stdout).Encode(o.used()); err != nil {
			return err
		}
	}
	return nil
}

func (o *operator) used() used {
	var all syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &all); err != nil {
		panic(err)
	}
	return used{Processor: time.Duration(all.Utime.Nano() + all.Stime.Nano()), Requests: o.requests.Load()}
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
	key := func(name string) string { return filepath.Join(s.Keys, name) }
	config := &rest.Config{
		Host: "https://" + s.Server + "/" + runtimeName(i), QPS: -1, Dial: new(net.Dialer).DialContext,
		TLSClientConfig: rest.TLSClientConfig{CAFile: key("ca.crt"), CertFile: key("tls.crt"), KeyFile: key("tls.key")},
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
	material, err := readMaterial(o.Keys)
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
	return domainOf(string(id)), nil
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

func domainOf(name string) string { return name + ".example.com" }

// readMaterial reads ca.crt, tls.crt and tls.key of a folder.
func readMaterial(folder string) (*keys.Material, error) {
	var files [3][]byte
	for i, name := range strings.Fields("ca.crt tls.crt tls.key") {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		files[i] = text
	}
	return keys.NewMaterial(files[0], files[1], files[2])
}
