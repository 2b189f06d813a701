// Package node stands in for the machinery that makes pods of a Deployment beside a real API
// server: deployment controller, endpoint slices, kube-proxy, kubelet and the end of namespaces.
//
// A container is a real process. It has the root of its image and its mounts, the network namespace
// of its pod, and the user, groups, environment, arguments, ports and HTTP probes of the
// Deployment. Images are programs on this machine. The node refuses pod fields that it does not
// know. A rollout is always that of maxSurge 1 and maxUnavailable 0. [NewHost] needs no rights and
// gives containers neither a root nor a network.
//
// The node has no objects for pods and replica sets, no limits of resources, no seccomp, and no
// network policies.
package node

import (
	"context"
	"encoding/json"
	"errors"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// interval is the time between two looks at the cluster, and of a pod at its volumes and its
// process.
const interval = 200 * time.Millisecond

// Options are the choices of [New].
type Options struct {
	// Images are the paths of programs by the names of images.
	Images map[string]string
	// ImageEnv are the variables of images, as NAME=value, by their names. Those of a container win.
	ImageEnv map[string][]string
	// Hosts maps "<host>:<port>", as pods dial it, to an address on this machine.
	Hosts map[string]string
	// Host is for [NewHost] only.
	Host HostOptions
}

// Node is the stand-in for one runtime. Its methods may be called concurrently.
type Node struct {
	t     testing.TB
	host  bool // of NewHost
	opts  Options
	dir   string
	plane *apiserver.ControlPlane
	stop  context.CancelFunc
	ctx   context.Context //nolint:containedctx // It ends with the node.
	work  sync.WaitGroup
	made  int // pods so far

	logf, errorf func(format string, args ...any)

	mu     sync.Mutex
	pods   []*pod
	routes map[string][]target
	broken string // prefix of images
}

// New returns a node that is not started yet. Without the rights of a superuser it skips the test,
// and fails it in CI.
func New(t testing.TB, opts Options) *Node {
	t.Helper()
	trial, err := newNetwork()
	if err != nil {
		rig.Missing(t, "pods need network namespaces: run as root, and a container with "+
			"--cap-add=SYS_ADMIN --cap-add=NET_ADMIN --security-opt=seccomp=unconfined: %v", err)
	}
	trial.close()
	n := &Node{t: t, opts: opts, logf: t.Logf, errorf: t.Errorf}
	n.settle()
	rig.NoError(t, errors.Join(os.Chmod(n.dir, 0o755), n.pull()))
	return n
}

// settle makes the folder of the node. The path of a socket must be short.
func (n *Node) settle() {
	n.t.Helper()
	var err error
	n.dir, err = os.MkdirTemp("", "node-")
	rig.NoError(n.t, err)
	n.t.Cleanup(func() { _ = os.RemoveAll(n.dir) })
	text, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
		"egressSelections": []any{map[string]any{"name": "cluster", "connection": map[string]any{
			"proxyProtocol": "HTTPConnect", "transport": map[string]any{"uds": map[string]any{"udsName": n.socket()}},
		}}},
	})
	rig.NoError(n.t, errors.Join(err, os.WriteFile(n.egress(), text, 0o600)))
}

// pull copies the programs once. Containers have hard links to the copies: a program that is open
// for writing while another process forks cannot be executed.
func (n *Node) pull() error {
	for image, program := range n.opts.Images {
		text, err := os.ReadFile(program)
		if err == nil {
			err = os.WriteFile(n.imagePath(image), text, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) imagePath(image string) string {
	return filepath.Join(n.dir, "image-"+url.PathEscape(image))
}

func (n *Node) socket() string { return filepath.Join(n.dir, "egress.sock") }

func (n *Node) egress() string { return filepath.Join(n.dir, "egress.json") }

// APIServerArgs returns the flags by which an API server reaches the pods of this node.
func (n *Node) APIServerArgs() map[string][]string {
	return map[string][]string{"egress-selector-config-file": {n.egress()}}
}

// Start starts the node for an API server that has [Node.APIServerArgs]. The test stops it, before
// the API server.
func (n *Node) Start(plane *apiserver.ControlPlane) {
	n.t.Helper()
	n.plane = plane
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.t.Cleanup(n.end)
	egress, err := new(net.ListenConfig).Listen(n.ctx, "unix", n.socket())
	rig.NoError(n.t, err)
	server := &http.Server{
		Handler: http.HandlerFunc(n.connect), ReadHeaderTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return n.ctx },
	}
	n.work.Go(func() { _ = server.Serve(egress) })
	n.work.Go(func() {
		wait.UntilWithContext(n.ctx, func(ctx context.Context) {
			if err := n.sync(ctx); err != nil && ctx.Err() == nil {
				n.logf("node: %v", err)
			}
		}, interval)
		_ = server.Close()
	})
}

// end kills all containers.
func (n *Node) end() {
	n.stop()
	n.work.Wait()
	for _, p := range n.pods {
		<-p.done
		if !n.host && n.t.Failed() {
			text, _ := os.ReadFile(p.logPath()) // A container that did not start has none.
			n.t.Logf("log of pod %s:\n%s", p.state.Name, text[max(0, len(text)-600):])
		}
	}
}

// sync brings pods, endpoints and the objects of the cluster up to date.
func (n *Node) sync(ctx context.Context) error {
	var (
		deployments appsv1.DeploymentList
		services    corev1.ServiceList
		namespaces  corev1.NamespaceList
	)
	if err := errors.Join(n.plane.Client.List(ctx, &deployments), n.plane.Client.List(ctx, &services),
		n.plane.Client.List(ctx, &namespaces)); err != nil {
		return err
	}
	n.reap(deployments.Items)
	for i := range deployments.Items {
		if err := n.roll(ctx, &deployments.Items[i]); err != nil {
			return err
		}
	}
	if err := n.lead(ctx, services.Items); err != nil {
		return err
	}
	return n.release(ctx, namespaces.Items)
}

// reap ends the pods of Deployments that are gone, and drops pods that have ended.
func (n *Node) reap(deployments []appsv1.Deployment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = slices.DeleteFunc(n.pods, func(p *pod) bool {
		wanted := slices.ContainsFunc(deployments, func(d appsv1.Deployment) bool {
			return p.owner == types.NamespacedName{Namespace: d.Namespace, Name: d.Name} && d.DeletionTimestamp == nil
		})
		if !wanted {
			p.end()
		}
		return p.gone()
	})
}

// release lets namespaces end that have no pods. Other objects in them stay, so that a test sees
// them.
func (n *Node) release(ctx context.Context, namespaces []corev1.Namespace) error {
	for i := range namespaces {
		namespace := &namespaces[i]
		inhabited := slices.ContainsFunc(n.running(), func(p *pod) bool { return p.owner.Namespace == namespace.Name })
		if namespace.DeletionTimestamp == nil || inhabited {
			continue
		}
		if err := n.deleteLeases(ctx, namespace.Name); err != nil {
			return err
		}
		namespace.Spec.Finalizers = nil
		err := n.plane.Client.SubResource("finalize").Update(ctx, namespace) //nolint:misspell // Its name in the API.
		if err := ignoreRaces(err); err != nil {
			return err
		}
	}
	return nil
}

// running returns all pods, including those that end.
func (n *Node) running() []*pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *Node) add(p *pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = append(n.pods, p)
}

// Pods returns the pods of a Deployment, including those that end.
func (n *Node) Pods(deployment types.NamespacedName) (pods []Pod) {
	for _, p := range n.running() {
		if p.owner == deployment {
			pods = append(pods, p.now())
		}
	}
	return pods
}

// ignoreRaces returns nil for the errors of an object that has changed meanwhile. The next round
// corrects them.
func ignoreRaces(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
