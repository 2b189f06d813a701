// Package lab runs a control plane and its runtimes on one machine, for the demo and the tests of
// this example. API servers, cert-manager's controllers, agents and the operator are real. The lab
// stands in for machines and networks only: it starts the processes of Deployments, and leads
// connections to them.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// Progress gets a line for each step of a long build. Default: nothing does.
	Progress io.Writer
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
	replicas []*Operator
	reader   string

	mu      sync.Mutex
	closers []func() error
}

// Runtime is one runtime with its machines.
type Runtime struct {
	client.Client
	// Link is the way of the operator to the API server.
	*machine.Link

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

// discardLogs sets the logger of controller-runtime, which logs a stack trace without one.
var discardLogs = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

// New returns a lab in which nothing runs.
func New(opts Options) (*Lab, error) {
	opts.Replicas = max(1, opts.Replicas)
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	discardLogs()
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
	closers := l.closers
	l.closers = nil
	l.mu.Unlock() // Connections that end may ask for the leader.
	var errs []error
	for _, end := range slices.Backward(closers) {
		errs = append(errs, end())
	}
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
	image := ""
	if broken {
		image = managerImage
	}
	r.node.Break(image)
}

func (l *Lab) log(name string) string { return filepath.Join(l.Dir, "logs", name) }

// StartAPIServers starts the API servers of the control plane and of the runtimes, with nodes.
func (l *Lab) StartAPIServers(ctx context.Context) error {
	ids := append([]string{ControlPlane}, l.opts.Runtimes...)
	all, nodes := make([]apiserver.Options, len(ids)), make([]*node.Node, len(ids))
	for i, id := range ids {
		var err error
		if nodes[i], err = l.newNode(id); err != nil {
			return err
		}
		l.onClose(nodes[i].Remove)
		all[i] = apiserver.Options{
			Scheme: l.opts.Scheme, APIServerArgs: nodes[i].APIServerArgs(), LogDir: l.log(id),
			KubeconfigPath: filepath.Join(l.Dir, id+".kubeconfig"),
		}
		if err := os.Mkdir(all[i].LogDir, 0o700); err != nil {
			return err
		}
	}
	all[0].CRDPaths = l.opts.CRDPaths
	planes, stop, err := apiserver.StartAll(ctx, all)
	l.onClose(stop)
	if err != nil {
		return err
	}
	l.plane, l.Plane = planes[0], planes[0].Client
	for i, plane := range planes {
		stop, err := nodes[i].Run(plane)
		l.onStop(stop)
		if err != nil {
			return err
		}
		way, err := machine.NewLink(plane.Config.Host)
		if err != nil {
			return err
		}
		l.onStop(way.Cut)
		l.Runtimes[ids[i]] = &Runtime{Client: plane.Client, plane: plane, node: nodes[i], Link: way}
	}
	return nil
}

func (l *Lab) newNode(id string) (*node.Node, error) {
	return node.NewHost(node.Options{
		Images: map[string]string{agentImage: l.programs.agent, managerImage: l.programs.manager},
		Host: node.HostOptions{
			Env:  []string{"STOP_DELAY=0s", "SHUTDOWN_TIMEOUT=1s"}, // The demo ends soon.
			Log:  func(d types.NamespacedName) string { return l.log(id + "-" + d.Name + ".log") },
			Note: func(line string) { l.note(id, line) },
		},
	})
}
