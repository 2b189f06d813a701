package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// The wait before a container that has ended is started again doubles from the first to the second.
// A kubelet starts at 10 s.
const minRestart, maxRestart = 500 * time.Millisecond, 10 * time.Second

// Pod is the state of one replica of a Deployment.
type Pod struct {
	Name     string
	Ready    bool
	Ending   bool
	Restarts int
	// Pid is the id of the process, 0 if there is none.
	Pid int
}

// pod is one replica: a network and a root of its own, and one process in them.
type pod struct {
	node    *Node
	hash    string // of the template
	owner   types.NamespacedName
	labels  map[string]string
	spec    corev1.PodSpec
	ip      netip.Addr
	dir     string
	net     *network          // nil with NewHost
	ports   map[uint16]string // addresses on this machine, with NewHost
	account bool              // has the files of its service account
	volumes []*volume
	env     []string
	args    []string
	ways    []*rig.Relay // out of the network
	secrets [][]byte     // all that was ever mounted

	ctx  context.Context //nolint:containedctx // It ends when the pod is deleted.
	end  func()          // deletes the pod, and does not wait
	done chan struct{}

	mu    sync.Mutex
	state Pod
}

func (n *Node) newPod(owner types.NamespacedName, name, hash string, template *corev1.PodTemplateSpec) (*pod, error) {
	if problem := unknown(&template.Spec); problem != "" {
		return nil, fmt.Errorf("pod %s: the node does not know %s", name, problem)
	}

	n.made++
	dir := filepath.Join(n.dir, name)
	p := &pod{
		node: n, hash: hash, owner: owner, labels: maps.Clone(template.Labels), spec: *template.Spec.DeepCopy(),
		dir: dir, done: make(chan struct{}), state: Pod{Name: name},
	}
	p.ip = n.addressFor(&p.spec)
	if err := n.admit(p); err != nil {
		return nil, err
	}
	if err := p.openNetwork(); err != nil {
		return nil, err
	}

	p.ctx, p.end = context.WithCancel(n.ctx)
	if err := p.prepare(); err != nil {
		p.close()
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	if err := p.store(); err != nil {
		p.close()
		return nil, err
	}

	go p.run()
	return p, nil
}

// run runs the pod until it is deleted.
func (p *pod) run() {
	defer p.close()

	var (
		current *process
		next    time.Time
		pause   = minRestart
	)

	wait.UntilWithContext(p.ctx, func(context.Context) {
		complete := p.refresh()
		switch {
		case current == nil && complete && !time.Now().Before(next):
			current = p.start()
		case current != nil && !current.Running():
			p.node.logf("pod %s: its container has ended: %s", p.state.Name, current.State())
			current, next, pause = nil, time.Now().Add(pause), min(2*pause, maxRestart)
			p.set(func(s *Pod) { s.Ready, s.Pid, s.Restarts = false, 0, s.Restarts+1 })
		case current != nil:
			current.probe()
		}
	}, interval)

	current.stop(p.grace())
}

// refresh brings the volumes up to date, and reports whether the process has all Secrets and
// ConfigMaps that it needs.
func (p *pod) refresh() bool {
	complete := true
	for _, v := range p.volumes {
		files, err := v.read()
		if err != nil {
			complete = complete && v.written != nil // A running container keeps its files.
			continue
		}

		changed, err := v.write(files)
		if err != nil {
			p.node.errorf("pod %s: %v", p.state.Name, err)
		}
		if changed && v.secret {
			p.secrets = slices.AppendSeq(p.secrets, maps.Values(files))
		}
	}
	return complete
}

func (p *pod) grace() time.Duration {
	seconds := value(p.spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(seconds) * time.Second
}

// close frees the resources of the pod. Its log must not have the content of a mounted Secret.
func (p *pod) close() {
	p.end()
	p.unstore()
	for _, way := range p.ways {
		way.Close()
	}

	if p.net != nil {
		p.net.close()
	}
	if said, err := os.ReadFile(p.logPath()); err == nil && len(said) > 0 && !p.node.host {
		rig.KeepsSecrets(p.node.t, string(said), p.secrets...)
	}

	close(p.done)
}

// gone reports whether the pod has ended.
func (p *pod) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// now returns the state of the pod.
func (p *pod) now() Pod {
	p.mu.Lock()
	defer p.mu.Unlock()

	state := p.state
	state.Ending = p.ctx.Err() != nil
	return state
}

func (p *pod) set(change func(*Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

// serves reports whether Services lead to the pod.
func (p *pod) serves() bool {
	now := p.now()
	return now.Ready && !now.Ending
}

func (p *pod) logPath() string {
	if p.net == nil {
		return p.node.opts.Host.Log(p.owner)
	}
	return p.dir + ".log"
}

// port returns the number of a port of the container, by name or number.
func (p *pod) port(name string) (uint16, error) {
	for _, port := range p.container().Ports {
		if port.Name == name {
			return uint16(port.ContainerPort), nil
		}
	}

	number, err := strconv.ParseUint(name, 10, 16)
	return uint16(number), err
}

// process is one process of the container.
type process struct {
	*machine.Process

	pod                 *pod
	readiness, liveness check
}

func (p *pod) start() *process {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.node.errorf("pod %s: %v", p.state.Name, err)
		return nil
	}
	defer log.Close() // The child has its own descriptor.

	cmd := exec.Command(binary, p.args...)
	cmd.Env = p.env
	cmd.Dir = "/"
	cmd.Stdout = log
	cmd.Stderr = log
	r := &process{
		pod: p, readiness: newCheck(p.container().ReadinessProbe, false), liveness: newCheck(p.container().LivenessProbe, true),
	}
	follow := func() (err error) {
		r.Process, err = machine.Follow(cmd)
		return err
	}

	if p.net == nil {
		cmd.Path, cmd.SysProcAttr = p.node.program(p.container().Image), machine.OwnGroup()
		err = follow()
	} else {
		cmd.SysProcAttr = p.attributes()
		// A process inherits the network of the thread that starts it.
		err = p.net.inside(follow)
	}

	if err != nil {
		p.node.errorf("pod %s: %v", p.state.Name, err)
		return nil
	}

	p.set(func(s *Pod) { s.Pid = r.Pid() })
	return r
}

// probe sets the readiness of the container, and kills it when its liveness probe fails.
func (r *process) probe() {
	r.readiness.run(r.pod)
	r.liveness.run(r.pod)
	r.pod.set(func(s *Pod) { s.Ready = r.readiness.passes })

	if !r.liveness.passes {
		r.pod.node.logf("pod %s: killed by its liveness probe", r.pod.state.Name)
		_ = r.Signal(syscall.SIGKILL) // It may have ended.
	}
}

// stop asks the process to end, and kills it after the grace period, or with the node. A nil
// process is ignored.
func (r *process) stop(grace time.Duration) {
	if r == nil {
		return
	}

	r.pod.set(func(s *Pod) { s.Ready = false })
	_ = r.Signal(syscall.SIGTERM) // It may have ended.

	select {
	case <-r.Exited():
	case <-time.After(grace):
		r.pod.node.logf("pod %s: killed, as it did not end within %s", r.pod.state.Name, grace)
	case <-r.pod.node.ctx.Done():
	}

	r.Kill()
}

// check is a probe of a container with its schedule.
type check struct {
	spec     *corev1.Probe // nil: always passes
	next     time.Time
	failures int32
	passes   bool
}

func newCheck(spec *corev1.Probe, passes bool) check {
	return check{spec: spec, passes: passes || spec == nil}
}

// run probes the container if it is time for that. A container that does not pass is probed at
// every call. A kubelet would wait for the period there, too, and the test with it.
func (c *check) run(p *pod) {
	if c.spec == nil || time.Now().Before(c.next) {
		return
	}

	c.failures++
	if err := p.probe(c.spec); err == nil {
		c.failures = 0
		c.passes = true
	}

	c.passes = c.passes && c.failures < c.spec.FailureThreshold
	if c.passes {
		c.next = time.Now().Add(time.Duration(c.spec.PeriodSeconds) * time.Second)
	}
}

// probe makes one HTTP request to the container, at the address of its pod.
func (p *pod) probe(spec *corev1.Probe) error {
	number, err := p.port(spec.HTTPGet.Port.String())
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(spec.TimeoutSeconds)*time.Second)
	defer cancel()

	_, err = p.get(ctx, strings.ToLower(string(spec.HTTPGet.Scheme)), number, spec.HTTPGet.Path)
	return err
}

// get makes a request to a port of the pod, on a connection of its own. It fails unless the status of the answer is 200.
func (p *pod) get(ctx context.Context, scheme string, port uint16, path string) ([]byte, error) {
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, port) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}

	return rig.GetWith(ctx, &http.Client{Transport: transport}, scheme+"://"+netip.AddrPortFrom(p.ip, port).String()+path)
}

// Get returns the answer of a pod of a Deployment to an HTTP request, as Prometheus would see it.
// The port is a name or a number.
func (n *Node) Get(ctx context.Context, deployment types.NamespacedName, port, path string) ([]byte, error) {
	for _, p := range n.running() {
		if p.owner != deployment || p.now().Ending || p.now().Pid == 0 {
			continue
		}

		number, err := p.port(port)
		if err != nil {
			return nil, err
		}
		return p.get(ctx, "http", number, path)
	}
	return nil, fmt.Errorf("no pod of Deployment %s", deployment)
}
