// Package lab runs a control plane and its runtimes on one machine, for the demo and the tests of
// this example. API servers, cert-manager's controllers, agents and the operator are real. The lab
// stands in for machines and networks only: it starts the processes of Deployments, and leads
// connections to them.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"      //nolint:depguard // Not released.
)

// Options are the choices of [Start].
type Options struct {
	// Scheme is that of all clients.
	Scheme *runtime.Scheme
	// Runtimes are the ids of the runtimes.
	Runtimes []string
	// Replicas is the number of operators. Default: 1.
	Replicas int
	// OperatorArgs are added to those of the operator's Deployment.
	OperatorArgs []string
	// CRDPaths are definitions in the control plane, beside those that are deployed.
	CRDPaths []string
	// Progress gets a line for each step of a long build.
	Progress func(line string)
}

// Lab is a control plane with runtimes. Its methods may be called concurrently, unless they start
// or stop the same part.
type Lab struct {
	// Plane is the control plane.
	Plane client.Client
	// Runtimes are by id.
	Runtimes map[string]*Runtime
	// Dir has kubeconfigs and, as folder logs, the logs of all programs.
	Dir string

	opts     Options
	programs programs
	plane    *apiserver.ControlPlane
	service  *service
	replicas []*operator
	reader   string

	mu      sync.Mutex
	closers []func() error
}

// Runtime is one runtime with its machines.
type Runtime struct {
	client.Client
	// Link is the way of the operator to the API server.
	*machine.Link

	id    string
	plane *apiserver.ControlPlane
	node  *node.Node
}

// Inventory returns all objects of the runtime, except Events.
func (r *Runtime) Inventory(ctx context.Context) (objects []string, err error) {
	err = r.plane.Objects(ctx, func(kind string, o *metav1.PartialObjectMetadata) {
		objects = append(objects, kind+" "+client.ObjectKeyFromObject(o).String())
	})
	return objects, err
}

// The names of images that the lab runs begin so: the agent, and ../../module.
// Other images of modules count as available.
const agentImage, managerImage = "runtime-watcher-agent", "keda.example.com/keda-manager:"

// ControlPlane is the id of the control plane as its own runtime.
const ControlPlane = "control-plane"

// New returns a lab in which nothing runs.
func New(opts Options) (*Lab, error) {
	opts.Replicas = max(1, opts.Replicas)
	log.SetLogger(logr.Discard())              // The first call counts. Without any, it logs a stack trace.
	dir, err := os.MkdirTemp("", "lifecycle-") // The path of a socket must be short.
	if err != nil {
		return nil, err
	}
	return &Lab{opts: opts, Dir: dir, Runtimes: make(map[string]*Runtime)}, os.Mkdir(filepath.Join(dir, "logs"), 0o700)
}

// onClose adds an end. Close calls them in reverse order.
func (l *Lab) onClose(end func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, end)
}

// onStop adds an end that cannot fail.
func (l *Lab) onStop(end func()) {
	l.onClose(func() error {
		end()
		return nil
	})
}

// Close ends all programs and removes the directory, unless its logs shall be kept.
func (l *Lab) Close(keepLogs bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, end := range slices.Backward(l.closers) {
		errs = append(errs, end())
	}
	l.closers = nil
	if !keepLogs {
		errs = append(errs, os.RemoveAll(l.Dir))
	}
	return errors.Join(errs...)
}

// note adds a line to the log of a node.
func (l *Lab) note(id, line string) {
	file, err := os.OpenFile(l.log(id+"-node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintln(file, time.Now().Format(time.TimeOnly), line)
}

// Break ends the managers of the modules, or starts them again. Meanwhile their Deployments are not
// available.
func (r *Runtime) Break(broken bool) {
	if !broken {
		r.node.Break("")
		return
	}
	r.node.Break(managerImage)
}

func (l *Lab) log(name string) string { return filepath.Join(l.Dir, "logs", name) }

// atOnce is the number of API servers that start at the same time.
const atOnce = 3

// StartAPIServers starts the API servers of the control plane and of the runtimes.
func (l *Lab) StartAPIServers(ctx context.Context) error {
	var starting sync.WaitGroup
	ids := append([]string{ControlPlane}, l.opts.Runtimes...)
	errs := make([]error, len(ids))
	runtimes := make([]*Runtime, len(ids))
	slots := make(chan struct{}, atOnce)
	for i, id := range ids {
		var crds []string
		if id == ControlPlane {
			crds = l.opts.CRDPaths
		}
		starting.Go(func() {
			slots <- struct{}{}
			runtimes[i], errs[i] = l.startRuntime(ctx, id, crds)
			<-slots
		})
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	l.plane, l.Plane = runtimes[0].plane, runtimes[0].Client
	for _, r := range runtimes {
		l.Runtimes[r.id] = r
	}
	return nil
}

func (l *Lab) startAPIServer(
	ctx context.Context, name string, args map[string][]string, crds ...string,
) (*apiserver.ControlPlane, error) {
	logs := l.log(name)
	if err := os.Mkdir(logs, 0o700); err != nil {
		return nil, err
	}
	plane, err := apiserver.Start(ctx, apiserver.Options{
		Scheme: l.opts.Scheme, APIServerArgs: args, LogDir: logs, CRDPaths: crds,
		KubeconfigPath: filepath.Join(l.Dir, name+".kubeconfig"),
	})
	if err != nil {
		return nil, fmt.Errorf("API server of %s: %w", name, err)
	}
	l.onClose(plane.Stop)
	return plane, nil
}

func (l *Lab) startRuntime(ctx context.Context, id string, crds []string) (*Runtime, error) {
	n, err := node.NewHost(node.Options{
		Images: map[string]string{agentImage: l.programs.agent, managerImage: l.programs.manager},
		Host: node.HostOptions{
			Env:  []string{"STOP_DELAY=0s", "SHUTDOWN_TIMEOUT=1s"}, // The demo ends soon.
			Log:  func(d types.NamespacedName) string { return l.log(id + "-" + d.Name + ".log") },
			Note: func(line string) { l.note(id, line) },
		},
	})
	if err != nil {
		return nil, err
	}
	plane, err := l.startAPIServer(ctx, id, n.APIServerArgs(), crds...)
	if err != nil {
		return nil, err
	}
	stop, err := n.Run(plane)
	l.onClose(stop)
	if err != nil {
		return nil, err
	}
	way, err := machine.NewLink(plane.Config.Host)
	if err != nil {
		return nil, err
	}
	l.onStop(way.Cut)
	return &Runtime{Client: plane.Client, id: id, plane: plane, node: n, Link: way}, nil
}
