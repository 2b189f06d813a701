package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

const (
	// sync is how often a pod looks after its volumes and its process. A kubelet takes up to a minute for volumes.
	syncInterval = 100 * time.Millisecond
	// The wait before a container that has ended is started again: a kubelet begins with 10 s.
	minRestart, maxRestart = 500 * time.Millisecond, 10 * time.Second

	accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// pod is one replica: a network and a root of its own, and one process in them.
type pod struct {
	node     *Node
	name     string
	template string // the hash of what it was made from
	owner    types.NamespacedName
	labels   map[string]string
	spec     corev1.PodSpec
	ip       netip.Addr
	dir      string
	net      *network
	mounts   map[string]*volume // by the name of the Secret
	env      []string
	args     []string
	ways     []net.Listener // out of the network
	secrets  [][]byte       // all that was ever mounted

	ending   chan struct{} // closed when the pod is deleted
	killed   chan struct{} // closed when the node is shut down
	endOnce  sync.Once
	done     chan struct{}
	carriers sync.WaitGroup

	mu       sync.Mutex
	ready    bool
	restarts int
	pid      int
}

func (n *Node) newPod(owner types.NamespacedName, hash, name string, template *corev1.PodTemplateSpec) (*pod, error) {
	if problem := unknown(&template.Spec); problem != "" {
		return nil, fmt.Errorf("pod %s: the stand-in does not know %s", name, problem)
	}

	n.pods++

	p := &pod{
		node: n, name: name, template: hash, owner: owner, labels: maps.Clone(template.Labels), spec: *template.Spec.DeepCopy(),
		ip:  netip.AddrFrom4([4]byte{10, 244, byte(n.pods >> 8), byte(n.pods)}),
		dir: filepath.Join(n.dir, name), mounts: map[string]*volume{},
		ending: make(chan struct{}), killed: n.killed, done: make(chan struct{}),
	}

	network, err := newNetwork(p.ip)
	if err != nil {
		return nil, err
	}

	p.net = network
	if err := p.prepare(); err != nil {
		p.close()

		return nil, fmt.Errorf("pod %s: %w", name, err)
	}

	go p.run()

	return p, nil
}

// unknown names what a pod asks for that this stand-in would silently leave out.
func unknown(spec *corev1.PodSpec) string {
	container := &spec.Containers[0]

	switch {
	case len(spec.Containers) != 1 || len(spec.InitContainers) > 0:
		return "pods with more than one container"
	case len(container.Command) > 0 || container.WorkingDir != "":
		return "command and workingDir"
	case container.Lifecycle != nil || container.StartupProbe != nil:
		return "lifecycle and startupProbe"
	case !asksHTTP(container.ReadinessProbe) || !asksHTTP(container.LivenessProbe):
		return "probes other than httpGet"
	case spec.HostNetwork || len(spec.HostAliases) > 0:
		return "hostNetwork and hostAliases"
	}

	for _, v := range spec.Volumes {
		if v.Secret == nil || len(v.Secret.Items) > 0 {
			return "volumes other than whole Secrets: " + v.Name
		}
	}

	for _, m := range container.VolumeMounts {
		if m.SubPath != "" || m.SubPathExpr != "" || !m.ReadOnly {
			return "mounts with subPath, or that can be written: " + m.Name
		}
	}

	return ""
}

func asksHTTP(probe *corev1.Probe) bool { return probe == nil || probe.HTTPGet != nil }

func (p *pod) container() *corev1.Container { return &p.spec.Containers[0] }

// prepare makes the root, all but what is in the volumes, and the ways out of the network.
func (p *pod) prepare() error {
	program, err := p.node.image(p.container().Image)
	if err != nil {
		return err
	}

	names, err := p.openWays()
	if err != nil {
		return err
	}

	names["localhost"] = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	names[p.name] = p.ip

	r, err := newRoot(p.dir, program, names)
	if err != nil {
		return err
	}

	for _, mount := range p.container().VolumeMounts {
		if err := p.mount(r, &mount); err != nil {
			return err
		}
	}

	return errors.Join(p.mountAccount(r), p.describe())
}

func (p *pod) mount(r root, mount *corev1.VolumeMount) error {
	at := slices.IndexFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
	if at < 0 {
		return fmt.Errorf("there is no volume %s", mount.Name)
	}

	source := p.spec.Volumes[at].Secret
	mode, group := os.FileMode(corev1.SecretVolumeSourceDefaultMode), -1

	if source.DefaultMode != nil {
		mode = os.FileMode(*source.DefaultMode)
	}

	if security := p.spec.SecurityContext; security != nil && security.FSGroup != nil {
		// As kubelets do for fsGroup.
		group, mode = int(*security.FSGroup), mode|0o440
	}

	v, err := newVolume(r.path(mount.MountPath), mode, group)
	p.mounts[source.SecretName] = v

	return err
}

// describe fills in what the process is started with.
func (p *pod) describe() error {
	host, port, err := net.SplitHostPort(p.node.apiServer())
	if err != nil {
		return err
	}

	fields := map[string]string{
		"metadata.name": p.name, "metadata.namespace": p.owner.Namespace, "spec.nodeName": "stand-in", "status.podIP": p.ip.String(),
		"spec.serviceAccountName": p.spec.ServiceAccountName,
	}
	base := map[string]string{
		"PATH": "/", "HOSTNAME": p.name,
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port,
	}

	p.env, err = environment(p.container(), fields, base)
	if err != nil {
		return err
	}

	values := map[string]string{}
	for _, v := range p.container().Env {
		values[v.Name] = v.Value
	}

	for _, arg := range p.container().Args {
		p.args = append(p.args, expand(arg, values))
	}

	return nil
}

// mountAccount gives the token of the service account, where the pod wants one.
func (p *pod) mountAccount(r root) error {
	if wanted := p.spec.AutomountServiceAccountToken; wanted != nil && !*wanted {
		return nil
	}

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.owner.Namespace, Name: p.spec.ServiceAccountName}}
	request := &authenticationv1.TokenRequest{}

	if err := p.node.plane.Client.SubResource("token").Create(p.node.ctx, account, request); err != nil {
		return fmt.Errorf("token: %w", err)
	}

	v, err := newVolume(r.path(accountPath), 0o644, -1)
	if err != nil {
		return err
	}

	p.secrets = append(p.secrets, []byte(request.Status.Token))

	_, err = v.write(map[string][]byte{
		"token": []byte(request.Status.Token), "ca.crt": p.node.plane.Config.CAData, "namespace": []byte(p.owner.Namespace),
	})

	return err
}

// refresh brings the volumes up to date and reports whether all that the process needs is there.
func (p *pod) refresh() bool {
	complete := true

	for name, v := range p.mounts {
		var secret corev1.Secret
		if err := p.node.cache.Get(p.node.ctx, types.NamespacedName{Namespace: p.owner.Namespace, Name: name}, &secret); err != nil {
			complete = complete && v.written != nil // A container that runs goes on with what it has.

			continue
		}

		changed, err := v.write(secret.Data)
		if err != nil {
			p.node.t.Errorf("pod %s: %v", p.name, err)
		}

		if changed {
			p.secrets = slices.AppendSeq(p.secrets, maps.Values(secret.Data))
		}
	}

	return complete
}

// run is the life of the pod.
func (p *pod) run() {
	defer p.close()

	var process *process

	wait, next := minRestart, time.Now()
	tick := time.NewTicker(syncInterval)

	defer tick.Stop()

	for {
		complete := p.refresh()

		if process != nil && process.ended() {
			p.node.t.Logf("pod %s: its container has ended: %s", p.name, process.cmd.ProcessState)
			process.stop(0)

			process = nil
			next = time.Now().Add(wait)
			wait = min(2*wait, maxRestart)

			p.set(func() { p.restarts++ })
		}

		if process == nil && complete && !time.Now().Before(next) {
			process = p.start()
		}

		select {
		case <-p.killed:
			process.stop(0)

			return
		case <-p.ending:
			process.stop(p.grace())

			return
		case <-tick.C:
		}
	}
}

func (p *pod) grace() time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if p.spec.TerminationGracePeriodSeconds != nil {
		seconds = *p.spec.TerminationGracePeriodSeconds
	}

	return time.Duration(seconds) * time.Second
}

func (p *pod) close() {
	for _, way := range p.ways {
		_ = way.Close() // It listened.
	}

	p.net.close()
	p.carriers.Wait()

	// One that was ended at once, as the next Deployment was there already, may have said nothing.
	if said, err := os.ReadFile(p.logPath()); err == nil && len(said) > 0 {
		rig.KeepsSecrets(p.node.t, string(said), p.secrets...)
	}

	close(p.done)
	p.node.nudge()
}

// end is what a deletion of the pod does. It does not wait.
func (p *pod) end() { p.endOnce.Do(func() { close(p.ending) }) }

func (p *pod) isEnding() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

func (p *pod) isReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.ready
}

func (p *pod) set(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	p.node.nudge()
}

// process is one life of the container, with its probes.
type process struct {
	pod    *pod
	cmd    *exec.Cmd
	exited chan struct{}
	cancel context.CancelFunc
	probes sync.WaitGroup
}

func (p *pod) start() *process {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.node.t.Errorf("pod %s: %v", p.name, err)

		return nil
	}
	defer log.Close() // The child has its own descriptor.

	cmd := exec.Command(binary, p.args...) // Its life is that of the process.
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.env, "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: p.dir, Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: p.credential(),
	}

	// In the network of the pod: a process inherits that of the thread.
	if err := p.net.inside(cmd.Start); err != nil {
		p.node.t.Errorf("pod %s: %v", p.name, err)

		return nil
	}

	ctx, cancel := context.WithCancel(context.Background())
	run := &process{pod: p, cmd: cmd, exited: make(chan struct{}), cancel: cancel}

	go func() {
		defer close(run.exited)

		_ = cmd.Wait() // How it ended, ProcessState tells.
	}()

	p.set(func() { p.pid = cmd.Process.Pid })
	run.probe(ctx)

	return run
}

// credential is the user of the security contexts, that of the container first.
func (p *pod) credential() *syscall.Credential {
	user, group := int64(0), int64(0)
	credential := &syscall.Credential{}

	if s := p.spec.SecurityContext; s != nil {
		user, group = value(s.RunAsUser, user), value(s.RunAsGroup, group)

		if s.FSGroup != nil {
			credential.Groups = append(credential.Groups, uint32(*s.FSGroup))
		}
	}

	if s := p.container().SecurityContext; s != nil {
		user, group = value(s.RunAsUser, user), value(s.RunAsGroup, group)
	}

	credential.Uid, credential.Gid = uint32(user), uint32(group)

	return credential
}

func value(p *int64, otherwise int64) int64 {
	if p == nil {
		return otherwise
	}

	return *p
}

func (r *process) ended() bool {
	select {
	case <-r.exited:
		return true
	default:
		return false
	}
}

// stop asks the process to end, and ends it when the grace period is over. Nil is none.
func (r *process) stop(grace time.Duration) {
	if r == nil {
		return
	}

	defer r.pod.set(func() { r.pod.ready, r.pod.pid = false, 0 })
	defer r.probes.Wait()

	r.cancel()
	r.pod.set(func() { r.pod.ready = false })

	if grace > 0 {
		_ = r.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.

		timer := time.NewTimer(grace)
		defer timer.Stop()

		select {
		case <-r.exited:
		case <-timer.C:
			r.pod.node.t.Logf("pod %s: killed, as it did not end within %s", r.pod.name, grace)
		case <-r.pod.killed:
		}
	}

	_ = r.cmd.Process.Kill() // It may have ended.

	<-r.exited
}

func (p *pod) logPath() string { return p.dir + ".log" }

// port returns the number of a port of the container.
func (p *pod) port(name string) (uint16, error) {
	if number, err := strconv.ParseUint(name, 10, 16); err == nil {
		return uint16(number), nil
	}

	for _, port := range p.container().Ports {
		if port.Name == name {
			return uint16(port.ContainerPort), nil
		}
	}

	return 0, fmt.Errorf("pod %s: there is no port %s", p.name, name)
}
