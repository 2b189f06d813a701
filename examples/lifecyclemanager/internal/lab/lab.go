// Package lab runs a control plane and its runtimes on one machine, for the demo and the tests of
// this example. API servers, cert-manager's controllers, agents and the operator are real. The lab
// simulates only machines and networks: it starts the processes of Deployments, and routes
// connections to them.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing" //nolint:depguard // A demo uses the laboratory of tests.
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"         //nolint:depguard // None of these is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"   //nolint:depguard // See above.
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager" //nolint:depguard // See above.
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"        //nolint:depguard // See above.
)

// Options are the choices of [New].
type Options struct {
	// Dir is a folder for kubeconfigs and, as folder logs, for the logs of all programs. Default: a
	// new one, which stays after a failure.
	Dir string
	// Runtimes are the ids of the runtimes.
	Runtimes []string
	// Replicas is the number of operators. Default: 1.
	Replicas int
	// OperatorArgs are added to the arguments of the operator's Deployment.
	OperatorArgs []string
	// CRDPaths are definitions in the control plane, in addition to the deployed definitions.
	CRDPaths []string
	// Progress gets a line for each step of a long build. Default: progress is discarded.
	Progress io.Writer
}

// Lab is a control plane with runtimes. Its methods end the test, or the demo, when they fail. They
// may be called concurrently, unless they start or stop the same part.
type Lab struct {
	testing.TB

	Options
	// Plane is the control plane.
	Plane client.Client
	// Runtimes maps the id of each runtime to the runtime.
	Runtimes map[string]*Runtime

	scheme   *runtime.Scheme
	images   map[string]string
	operator string
	plane    *apiserver.ControlPlane
	args     []string
	reader   string

	mu       sync.Mutex
	replicas []*Operator
}

// Runtime is one runtime with its machines.
type Runtime struct {
	client.Client
	// Relay connects the operator to the API server.
	*rig.Relay

	Server *apiserver.ControlPlane
	Node   *node.Node
}

const (
	// Patience bounds each wait, also on a busy machine.
	Patience = 5 * time.Minute
	// ControlPlane is the id of the control plane as its own runtime.
	ControlPlane = "control-plane"
	namespace    = "kcp-system"
	// ManagerImage begins the name of the image of ../../module. The lab runs it and the agent.
	// Images of other modules count as available.
	ManagerImage = "keda.example.com/keda-manager:"
	agentImage   = "runtime-watcher-agent"
)

// New returns a lab in which nothing runs.
func New(t testing.TB, opts Options) *Lab {
	t.Helper()

	opts.Replicas = max(1, opts.Replicas)
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}

	if opts.Dir == "" {
		var err error
		opts.Dir, err = os.MkdirTemp("", "lifecycle-") //nolint:usetesting // It may stay.
		rig.NoError(t, err)
		t.Cleanup(func() {
			if !t.Failed() {
				rig.NoError(t, os.RemoveAll(opts.Dir))
			}
		})
	}

	l := &Lab{TB: t, Options: opts, Runtimes: make(map[string]*Runtime), scheme: runtime.NewScheme()}
	rig.NoError(l.TB, errors.Join(clientgoscheme.AddToScheme(l.scheme), apiextensionsv1.AddToScheme(l.scheme),
		certv1.AddToScheme(l.scheme), watcher.AddToScheme(l.scheme), v1beta2.AddToScheme(l.scheme)))
	rig.NoError(l.TB, os.MkdirAll(l.logPath(""), 0o700))
	return l
}

// Inventory returns all objects of the runtime, except Events.
func (r *Runtime) Inventory(ctx context.Context) (objects []string, err error) {
	err = r.Server.Objects(ctx, func(kind string, o *metav1.PartialObjectMetadata) {
		objects = append(objects, kind+" "+client.ObjectKeyFromObject(o).String())
	})
	return objects, err
}

func (l *Lab) logPath(name string) string { return filepath.Join(l.Dir, "logs", name) }

// Eventually waits until a condition holds.
func (l *Lab) Eventually(what string, condition func() bool) {
	l.Helper()
	rig.Eventually(l.TB, Patience, what+"; the logs are in "+l.Dir, condition)
}

// Build builds missing or outdated programs. The first build of the API server takes minutes.
func (l *Lab) Build() {
	l.Helper()

	_, err := apiserver.Assets(l.Context(), apiserver.AssetsOptions{Progress: l.Progress})
	rig.NoError(l.TB, err)
	build := func(folder string) string {
		_, _ = fmt.Fprintln(l.Progress, "building", folder) // It cannot fail.
		return rig.Build(l.TB, folder)
	}

	l.images = map[string]string{agentImage: build("cmd/agent")}
	l.operator = build("examples/lifecyclemanager")
	l.images[ManagerImage] = build("examples/lifecyclemanager/module")
	_, err = certmanager.Assets(l.Context(), certmanager.AssetsOptions{Progress: l.Progress})
	rig.NoError(l.TB, err)
}

// StartAPIServers starts the API servers of the control plane and of the runtimes, with nodes.
func (l *Lab) StartAPIServers() {
	l.Helper()

	ids := append([]string{ControlPlane}, l.Options.Runtimes...)
	all := make([]apiserver.Options, len(ids))
	for i, id := range ids {
		l.Runtimes[id] = &Runtime{Node: l.newNode(id)}
		all[i] = apiserver.Options{
			Scheme: l.scheme, APIServerArgs: l.Runtimes[id].Node.APIServerArgs(), LogDir: l.logPath(id),
			KubeconfigPath: filepath.Join(l.Dir, id+".kubeconfig"),
		}
		rig.NoError(l.TB, os.Mkdir(all[i].LogDir, 0o700))
	}

	all[0].CRDPaths = l.CRDPaths
	planes := apiserver.StartAllT(l.TB, all...)
	l.plane = planes[0]
	l.Plane = planes[0].Client

	for i, id := range ids {
		plane := planes[i]
		r := l.Runtimes[id]
		r.Server = plane
		r.Client = plane.Client
		r.Node.Start(plane)

		_, server, _ := strings.Cut(strings.TrimSuffix(plane.Config.Host, "/"), "//")
		way, err := rig.NewRelay(rig.Address(rig.FreePort(l.TB)), 0, server)
		rig.NoError(l.TB, err)
		l.Cleanup(way.Close)
		r.Relay = way
	}
}

func (l *Lab) newNode(id string) *node.Node {
	return node.NewHost(l.TB, node.Options{
		Images: l.images,
		Host: node.HostOptions{
			Env:  []string{"STOP_DELAY=0s", "SHUTDOWN_TIMEOUT=1s"}, // The demo ends soon.
			Log:  func(d types.NamespacedName) string { return l.logPath(id + "-" + d.Name + ".log") },
			Note: func(line string) { l.Logf("node of %s: %s", id, line) },
		},
	})
}

// StartCertManager starts the controllers of cert-manager.
func (l *Lab) StartCertManager() {
	l.Helper()
	opts := certmanager.Options{Verbose: true, LogFile: l.logPath("cert-manager.log")}
	p, err := certmanager.Start(l.Context(), l.plane.Kubeconfig, opts)
	rig.NoError(l.TB, err)
	l.Cleanup(p.Stop)
}

// Register creates the Kyma of a runtime, and the Secret with its kubeconfig, unless they exist.
// The kubeconfig leads through the relay.
func (l *Lab) Register(id string, labels map[string]string) {
	l.Helper()

	there := l.Runtimes[id]
	kubeconfig, err := clientcmd.Write(*l.kubeconfig(there.Server, func(config *clientcmdapi.Config) {
		for _, cluster := range config.Clusters {
			cluster.Server = "https://" + there.Addr()
		}
	}))
	rig.NoError(l.TB, err)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: id}
	kyma := &v1beta2.Kyma{ObjectMeta: meta, Spec: v1beta2.KymaSpec{Channel: "regular"}}
	kyma.Labels = labels
	kyma.Annotations = map[string]string{controllerruntime.DomainAnnotation: id + ".example.com"}

	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{skr.KubeconfigKey: kubeconfig}}
	for _, object := range []client.Object{secret, kyma} {
		rig.NoError(l.TB, client.IgnoreAlreadyExists(l.Plane.Create(l.Context(), object)))
	}
}

// kubeconfig returns a changed copy of the administrator's kubeconfig.
func (l *Lab) kubeconfig(plane *apiserver.ControlPlane, change func(*clientcmdapi.Config)) *clientcmdapi.Config {
	config, err := clientcmd.LoadFromFile(plane.Kubeconfig)
	rig.NoError(l.TB, err)
	change(config)
	return config
}
