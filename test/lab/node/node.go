// Package node simulates the parts of a cluster that create the pods of a Deployment, next to a
// real API server: deployment controller, endpoint slices, kube-proxy, kubelet and the end of
// namespaces.
//
// A container is a real process. It has the root of its image and its mounts, the network namespace
// of its pod, and the user, groups, environment, arguments, ports and HTTP probes of the
// Deployment. Images are programs on this machine. The node refuses pod fields that it does not
// support. A rollout has maxSurge 1 and maxUnavailable 0, or the other way round if maxSurge is 0.
// [NewHost] needs no rights and gives containers neither a root nor a network.
//
// The node has no objects for replica sets, no limits of resources, no seccomp, and no network
// policies. It has objects for pods only if [Options].Objects is set.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// interval is the time between two reads of the cluster, and between two checks of a pod's volumes
// and process.
const interval = 200 * time.Millisecond

// Options are the choices of [New].
type Options struct {
	// Images are the paths of programs by the names of images.
	Images map[string]string
	// ImageEnv contains the variables of images, as NAME=value, by the names of images. The
	// variables of a container take precedence.
	ImageEnv map[string][]string
	// Hosts maps "<host>:<port>", as pods dial it, to an address on this machine.
	Hosts map[string]string
	// NodePorts maps the node port of a Service to the address on this machine that leads there. It is
	// for [New] only.
	NodePorts map[int32]string
	// Platform says how the cluster of a provider differs from a plain cluster. It is for [New]
	// only.
	Platform Platform
	// Objects means that pods and the endpoints of Services are objects of the API server, as its
	// proxy to Services needs.
	Objects bool
	// Host is for [NewHost] only.
	Host HostOptions
}

// Node simulates the nodes of one runtime. Its methods may be called concurrently.
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
	// refusals are the errors of pods that the platform does not admit.
	refusals []error
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
	args := map[string][]string{"egress-selector-config-file": {n.egress()}}
	if n.opts.Platform.IPv6 {
		args["service-cluster-ip-range"] = []string{"fd00:10:96::/112"}
		args["advertise-address"] = []string{netip.IPv6Loopback().String()}
		args["bind-address"] = args["advertise-address"]
	}
	return args
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

	for port, address := range n.opts.NodePorts {
		n.openNodePort(port, address)
	}

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
			n.t.Logf("log of pod %s:\n%s", p.state.Name, worst(string(text)))
		}
	}
}

// worst returns the last warnings and errors of a log of an agent, and the last lines of it.
func worst(text string) string {
	const mostSerious, mostLast = 40, 5
	lines := strings.Split(strings.TrimSpace(text), "\n")
	serious := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.Contains(line, `"level":"WARN"`) && !strings.Contains(line, `"level":"ERROR"`)
	})
	serious = serious[max(0, len(serious)-mostSerious):]

	return strings.Join(slices.Concat(serious, lines[max(0, len(lines)-mostLast):]), "\n")
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

// Log returns the log of all containers of a Deployment since the start of the node, as kubectl prints
// it.
func (n *Node) Log(deployment types.NamespacedName) (text []byte) {
	for _, p := range n.running() {
		if p.owner == deployment {
			its, _ := os.ReadFile(p.logPath()) // A container that did not start has none.
			text = append(text, its...)
		}
	}
	return text
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

// HostOptions are the choices of [NewHost].
type HostOptions struct {
	// Env contains variables, as NAME=value, that take precedence over the variables of a
	// container.
	Env []string
	// Log returns the path of the log of a Deployment.
	Log func(deployment types.NamespacedName) string
	// Note gets a line for each error.
	Note func(line string)
}

// NewHost returns a node for a demo without rights. Its containers are processes of the same user
// in the network of this machine. A variable <NAME>_PORT with the number of a container port has a
// free port instead. Images are found by the beginning of their name. Pods with other images count
// as available. Leases are deleted with their namespace. Errors are only noted, and fail nothing.
func NewHost(t testing.TB, opts Options) *Node {
	t.Helper()

	note := func(format string, args ...any) { opts.Host.Note(fmt.Sprintf(format, args...)) }
	n := &Node{t: t, host: true, opts: opts, logf: note, errorf: note}
	n.settle()

	return n
}

// Break ends the pods of all images with a prefix and starts no others, until the next call. ""
// breaks none.
func (n *Node) Break(prefix string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = prefix
}

func (n *Node) isBroken(deployment *appsv1.Deployment) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken != "" && strings.HasPrefix(deployment.Spec.Template.Spec.Containers[0].Image, n.broken)
}

// program returns the path of the program of an image, "" for one that counts as available.
func (n *Node) program(image string) string {
	if !n.host {
		return n.imagePath(image)
	}

	for prefix, path := range n.opts.Images {
		if strings.HasPrefix(image, prefix) {
			return path
		}
	}
	return ""
}

// deleteLeases deletes the Leases of a namespace that ends: the Lease of a manager belongs to no
// module.
func (n *Node) deleteLeases(ctx context.Context, namespace string) error {
	if !n.host {
		return nil
	}
	return n.plane.Client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(namespace))
}

// openNetwork gives the pod a network of its own, or free ports of this machine.
func (p *pod) openNetwork() (err error) {
	if !p.node.host {
		p.net, err = newNetwork(append(p.outside(), p.ip)...)
		return err
	}

	p.ports = make(map[uint16]string)
	for _, port := range p.container().Ports {
		_, free, portErr := machine.ReservePort()
		p.ports[uint16(port.ContainerPort)], err = rig.Address(free), errors.Join(err, portErr)
	}
	return err
}

// dial connects to a port of the container.
func (p *pod) dial(ctx context.Context, port uint16) (net.Conn, error) {
	if p.net != nil {
		return p.net.dial(ctx, netip.AddrPortFrom(p.ip, port))
	}
	return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.ports[port])
}

// toHost changes variables to the paths and ports of this machine. A program cannot find the
// files of its service account where they should be.
func (p *pod) toHost(values map[string]string) error {
	for name, value := range values {
		for _, mount := range p.container().VolumeMounts {
			if strings.HasPrefix(value, mount.MountPath+"/") {
				values[name] = p.path(value)
			}
		}

		number, err := strconv.ParseUint(value, 10, 16)
		if prefix, ok := strings.CutSuffix(name, "_PORT"); ok && err == nil && p.ports[uint16(number)] != "" {
			values[prefix+"_BIND"], values[name], _ = strings.Cut(p.ports[uint16(number)], ":")
		}
	}

	for _, pair := range p.node.opts.Host.Env {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}

	if !p.account {
		return nil
	}

	server := p.node.plane.Config.Host
	ca := p.path(accountPath + "/ca.crt")
	token := p.path(accountPath + "/token")
	values["CANARY_API_SERVER"] = server
	values["CANARY_CA_CERT"] = ca
	values["CANARY_TOKEN_FILE"] = token
	config := clientcmdapi.NewConfig()
	config.Clusters["runtime"] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: ca}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{TokenFile: token}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "runtime", AuthInfo: "account"}
	config.CurrentContext = "pod"
	values["KUBECONFIG"] = p.path("/kubeconfig")

	return clientcmd.WriteToFile(*config, values["KUBECONFIG"])
}
