// Package node stands in, next to a real API server, for what makes pods of a Deployment: deployment controller, endpoint slices,
// kube-proxy, kubelet and the end of namespaces.
//
// A container is a real process. It sees the root that its image and its mounts make, has the network of its pod, which is a network
// namespace, and the user, groups, environment, arguments, ports and probes that the Deployment says. Images are programs on this
// machine. What a Deployment asks for beyond that is an error and not left out.
//
// What is not there: objects for pods and replica sets, limits of resources, seccomp and capabilities beyond what another user loses,
// the address range of a cluster network, and network policies.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
)

// Options are the choices of [New].
type Options struct {
	// Images are the paths of programs by the names of images.
	Images map[string]string
	// Hosts are what pods can reach outside, "<host>:<port>", and the addresses on this machine that it stands for.
	Hosts map[string]string
}

// Node is the stand-in for one runtime. Its methods may be called concurrently.
type Node struct {
	t      testing.TB
	opts   Options
	dir    string
	plane  *controlplane.ControlPlane
	cache  cache.Cache
	ctx    context.Context //nolint:containedctx // That of its life.
	stop   context.CancelFunc
	killed chan struct{}
	wake   chan struct{}
	work   sync.WaitGroup

	carriers sync.WaitGroup

	// Of the loop alone.
	pods int // that there ever were

	mu      sync.Mutex
	ended   bool
	routes  map[string][]target
	running []*pod // Written by the loop alone, which reads it without.
}

// New returns a stand-in, which is not started yet. It skips the test where it lacks the rights that it needs, those of a superuser; in
// CI, a superuser who lacks them fails.
func New(t testing.TB, opts Options) *Node {
	t.Helper()

	trial, err := newNetwork()
	if err != nil {
		if os.Getenv("CI") == "true" && os.Geteuid() == 0 {
			t.Fatalf("pods need network namespaces: %v", err)
		}

		t.Skipf("pods need network namespaces, for which one must be a superuser: %v", err)
	}

	trial.close()

	// Not that of the test: the path of a socket must be short.
	dir, err := os.MkdirTemp("", "node-") //nolint:usetesting // It would be too long.
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // It is in the directory for what may get lost.

	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	n := &Node{t: t, opts: opts, dir: dir, killed: make(chan struct{}), wake: make(chan struct{}, 1)}
	if err := n.pull(); err != nil {
		t.Fatal(err)
	}

	return n
}

// pull copies the programs, so that containers can have links to them.
func (n *Node) pull() error {
	for image, program := range n.opts.Images {
		text, err := os.ReadFile(program)
		if err != nil {
			return err
		}

		if err := os.WriteFile(n.imagePath(image), text, 0o755); err != nil {
			return err
		}
	}

	return nil
}

func (n *Node) imagePath(image string) string {
	return filepath.Join(n.dir, "image-"+url.PathEscape(image))
}

func (n *Node) image(name string) (string, error) {
	if _, known := n.opts.Images[name]; !known {
		return "", fmt.Errorf("there is no image %q", name)
	}

	return n.imagePath(name), nil
}

// APIServerArgs are the flags with which an API server finds its way to the pods of this node.
func (n *Node) APIServerArgs() map[string][]string {
	n.t.Helper()

	text, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
		"egressSelections": []any{map[string]any{
			"name": "cluster",
			"connection": map[string]any{
				"proxyProtocol": "HTTPConnect", "transport": map[string]any{"uds": map[string]any{"udsName": n.socket()}},
			},
		}},
	})
	path := filepath.Join(n.dir, "egress.json")

	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}

	if err != nil {
		n.t.Fatal(err)
	}

	return map[string][]string{"egress-selector-config-file": {path}}
}

func (n *Node) socket() string { return filepath.Join(n.dir, "egress.sock") }

func (n *Node) apiServer() string {
	address, err := url.Parse(n.plane.Config.Host)
	if err != nil || address.Host == "" {
		return n.plane.Config.Host
	}

	return address.Host
}

// Start lets the node work for an API server that has [Node.APIServerArgs]. The test ends it, before the API server.
func (n *Node) Start(plane *controlplane.ControlPlane) {
	n.t.Helper()

	n.plane = plane
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.t.Cleanup(n.end)

	if err := n.watch(); err != nil {
		n.t.Fatal(err)
	}

	if err := n.serve(); err != nil {
		n.t.Fatal(err)
	}

	n.work.Go(n.loop)
}

func (n *Node) watch() error {
	objects, err := cache.New(n.plane.Config, cache.Options{Scheme: n.plane.Client.Scheme()})
	if err != nil {
		return err
	}

	n.cache = objects
	nudge := clientcache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.nudge() }, UpdateFunc: func(any, any) { n.nudge() }, DeleteFunc: func(any) { n.nudge() },
	}

	n.work.Go(func() {
		if err := objects.Start(n.ctx); err != nil {
			n.t.Errorf("node: %v", err)
		}
	})

	for _, kind := range []client.Object{
		&appsv1.Deployment{}, &corev1.Secret{}, &corev1.Service{}, &corev1.Namespace{}, &discoveryv1.EndpointSlice{},
	} {
		informer, err := objects.GetInformer(n.ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(nudge)
		}

		if err != nil {
			return err
		}
	}

	return nil
}

func (n *Node) serve() error {
	way, err := new(net.ListenConfig).Listen(n.ctx, "unix", n.socket())
	if err != nil {
		return err
	}

	server := &http.Server{Handler: n, ReadHeaderTimeout: time.Minute}

	n.work.Go(func() { _ = server.Serve(way) }) // It ends when it is closed.
	n.work.Go(func() {
		<-n.ctx.Done()

		_ = server.Close() // Nobody needs it any more.
	})

	return nil
}

// nudge makes the loop look again.
func (n *Node) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Node) loop() {
	tick := time.NewTicker(time.Second) // What went wrong is tried again.
	defer tick.Stop()

	for n.ctx.Err() == nil {
		if err := n.sync(n.ctx); err != nil && n.ctx.Err() == nil {
			n.t.Logf("node: %v", err)
		}

		select {
		case <-n.wake:
		case <-tick.C:
		case <-n.ctx.Done():
		}
	}
}

// sync is one look at everything.
func (n *Node) sync(ctx context.Context) error {
	var (
		deployments appsv1.DeploymentList
		services    corev1.ServiceList
		namespaces  corev1.NamespaceList
	)

	for _, list := range []client.ObjectList{&deployments, &services, &namespaces} {
		if err := n.cache.List(ctx, list); err != nil {
			return err
		}
	}

	n.scaleAll(deployments.Items)
	n.lead(services.Items, n.running)

	for i := range deployments.Items {
		if err := ignoreRaces(n.tell(ctx, &deployments.Items[i])); err != nil {
			return err
		}
	}

	if err := n.publish(ctx, services.Items); err != nil {
		return err
	}

	return n.release(ctx, namespaces.Items)
}

func (n *Node) scaleAll(deployments []appsv1.Deployment) {
	n.mu.Lock()
	defer n.mu.Unlock()

	wanted := map[types.NamespacedName]bool{}

	for i := range deployments {
		if deployments[i].DeletionTimestamp == nil {
			wanted[client.ObjectKeyFromObject(&deployments[i])] = true
			n.scale(&deployments[i])
		}
	}

	n.running = slices.DeleteFunc(n.running, func(p *pod) bool {
		if !wanted[p.owner] {
			p.end()
		}

		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
}

// release lets namespaces go whose pods are gone. What else is in them stays, where a real controller would remove it: so a test sees
// what was left behind.
func (n *Node) release(ctx context.Context, namespaces []corev1.Namespace) error {
	for i := range namespaces {
		namespace := &namespaces[i]

		inhabited := slices.ContainsFunc(n.running, func(p *pod) bool { return p.owner.Namespace == namespace.Name })
		if namespace.DeletionTimestamp == nil || inhabited {
			continue
		}

		done := namespace.DeepCopy()
		done.Spec.Finalizers = nil

		if err := ignoreRaces(n.plane.Client.SubResource("finalize").Update(ctx, done)); err != nil { //nolint:misspell // That is its name.
			return err
		}
	}

	return nil
}

// end kills what runs.
func (n *Node) end() {
	n.stop()
	n.work.Wait() // From here on nobody starts anything.
	close(n.killed)

	for _, p := range n.running {
		<-p.done
	}

	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.carriers.Wait()

	if n.t.Failed() {
		n.showLogs()
	}
}

func (n *Node) showLogs() {
	logs, _ := filepath.Glob(filepath.Join(n.dir, "*.log")) // The pattern is right.

	for _, path := range logs {
		text, _ := os.ReadFile(path) // It is there.
		n.t.Logf("%s:\n%s", filepath.Base(path), text[max(0, len(text)-20_000):])
	}
}

// Pod is one replica of a Deployment, as it is now.
type Pod struct {
	Name     string
	Ready    bool
	Ending   bool
	Restarts int
	// Pid is that of the process, 0 if there is none.
	Pid int
}

// Pods are all of a Deployment, those included that are about to end.
func (n *Node) Pods(deployment types.NamespacedName) []Pod {
	n.mu.Lock()
	defer n.mu.Unlock()

	var pods []Pod

	for _, p := range n.podsOf(deployment) {
		p.mu.Lock()
		pods = append(pods, Pod{Name: p.name, Ready: p.ready, Ending: p.isEnding(), Restarts: p.restarts, Pid: p.pid})
		p.mu.Unlock()
	}

	return pods
}

// Get asks a port of a pod, which is a name or a number, over plain HTTP.
func (n *Node) Get(ctx context.Context, pod, port, path string) ([]byte, error) {
	p, err := n.pod(pod)
	if err != nil {
		return nil, err
	}

	return p.get(ctx, "http", port, path)
}

// Path returns where a file of a container is on this machine.
func (n *Node) Path(pod, inside string) string {
	n.t.Helper()

	p, err := n.pod(pod)
	if err != nil {
		n.t.Fatal(err)
	}

	return root(p.dir).path(inside)
}

// Log returns what a pod has said so far, also after its end.
func (n *Node) Log(pod string) string {
	text, err := os.ReadFile(filepath.Join(n.dir, pod+".log"))
	if err != nil {
		return err.Error()
	}

	return string(text)
}

func (n *Node) pod(name string) (*pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	at := slices.IndexFunc(n.running, func(p *pod) bool { return p.name == name })
	if at < 0 {
		return nil, fmt.Errorf("there is no pod %q", name)
	}

	return n.running[at], nil
}

func fetch(ctx context.Context, asker *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}

	answer, err := asker.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() // The body is read.

	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 && answer.StatusCode/100 != 3 { // As probes judge.
		err = fmt.Errorf("GET %s: %s: %.200s", address, answer.Status, body)
	}

	return body, err
}
