package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// remote is a runtime: its cluster, its key material and its agent.
type remote struct {
	*demo

	name, domain string
	cluster      *apiserver.ControlPlane
	secret       *testpki.Volume
	agent        *agent
	// canary is the Lease of the canary, empty without one.
	canary types.NamespacedName
}

// restartAfter is the time after which an agent that ended starts again with --serve, as a kubelet
// starts it.
const restartAfter = 10 * time.Second

// agent is a process of the agent, and with --serve its successors.
type agent struct {
	log      *os.File
	stopping chan struct{}
	// exited is closed when the process has ended and none follows.
	exited chan struct{}

	mu      sync.Mutex
	process *os.Process
	// addresses has the address of each server from the log: the first process takes free ports.
	addresses map[string]string
}

// startAgent starts the agent with the settings of a Deployment, and returns when it is ready.
func (r *remote) startAgent(ctx context.Context) (string, error) {
	log, err := os.Create(r.file("logs", "agent.log"))
	if err != nil {
		return "", err
	}
	r.closers = append(r.closers, log.Close)
	if err := r.createCanary(ctx); err != nil {
		return "", err
	}
	r.agent = &agent{
		log: log, addresses: make(map[string]string), stopping: make(chan struct{}), exited: make(chan struct{}),
	}
	cmd, err := r.launch()
	if err != nil {
		return "", err
	}
	r.closers = append(r.closers, r.agent.stop)
	go r.keepRunning(ctx, cmd)
	return r.describeAgent(ctx)
}

// file returns a path in a folder of the demo. The first runtime has no prefix.
func (r *remote) file(folder, name string) string {
	if r.name != runtimeName {
		name = r.name + "-" + name
	}
	return filepath.Join(r.dir, folder, name)
}

// launch starts a process, and writes its ID to a file.
func (r *remote) launch() (*exec.Cmd, error) {
	cmd := exec.Command(r.agentBinary) //nolint:noctx // stop ends it with SIGTERM.
	cmd.Env = r.agentSettings()
	cmd.Stderr = &lines{file: r.agent.log, each: r.readLog}
	cmd.SysProcAttr = machine.OwnGroup()

	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.agent.process = cmd.Process
	return cmd, os.WriteFile(r.file("", "agent.pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// keepRunning starts the agent again with --serve. Otherwise its end is the failure of the demo.
func (r *remote) keepRunning(ctx context.Context, cmd *exec.Cmd) {
	defer close(r.agent.exited)
	for {
		_ = cmd.Wait() // ProcessState says the same, and also reports exit code 0.
		switch {
		case interrupted(ctx, cmd.ProcessState):
			return
		case !r.settings.serve:
			r.fail(fmt.Errorf("the agent ended: %s\n  next: see agent.log", cmd.ProcessState))
			return
		}
		select {
		case <-r.agent.stopping:
			return
		case <-time.After(restartAfter):
		}
		var err error
		if cmd, err = r.launch(); err != nil {
			r.fail(fmt.Errorf("the agent does not start again: %w", err))
			return
		}
	}
}

func (a *agent) pid() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.process.Pid
}

// stop ends the process, after a grace period with SIGKILL. A process that stands still goes on
// first.
func (a *agent) stop() error {
	const grace = 5 * time.Second

	close(a.stopping)
	a.signal(syscall.SIGCONT)
	a.signal(syscall.SIGTERM)

	select {
	case <-a.exited:
		return nil
	case <-time.After(grace):
	}

	a.signal(syscall.SIGKILL)
	<-a.exited

	return fmt.Errorf("the agent did not end within %v and was killed", grace)
}

func (a *agent) signal(s os.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.process.Signal(s) // It may have ended.
}

// agentSettings returns those of a Deployment. A process that follows another has its ports.
func (r *remote) agentSettings() []string {
	ca, cert, key := r.secret.Paths()
	transport, address := "https", r.operator.addr
	if r.broker != nil {
		transport, address = "nats", r.broker.addr
	}
	settings := []string{
		"WEBHOOK_PORT=" + portOf(r.agent.webhook()), "WEBHOOK_BIND=127.0.0.1",
		"METRICS_PORT=" + portOf(cmp.Or(r.agent.metrics(), r.metricsAddr())), "METRICS_BIND=127.0.0.1",
		"CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
		"TRANSPORT=" + transport, "KCP_ADDR=" + address,
		"KCP_CONTRACT=" + string(r.settings.contract), "MANAGERS=" + component,
		"SETTLE=" + settle.String(), "LOG_LEVEL=debug", "SHUTDOWN_TIMEOUT=2s",
		"RESEND_AFTER=0s", // With --serve, each write shall have one reconcile.
	}
	if !r.settings.serve {
		// The demo is over by then, unless a slow machine commits after the settle time.
		settings = append(settings, "RESEND_AFTER=20s")
	}
	return append(settings, r.canarySettings()...)
}

// portOf returns the port of an address, and 0 for any without one.
func portOf(address string) string {
	if _, port, err := net.SplitHostPort(address); err == nil {
		return port
	}
	return "0"
}

// metricsAddr returns the fixed address of the metrics with --serve, "" without one.
func (r *remote) metricsAddr() string {
	if !r.settings.serve || r.settings.port == 0 {
		return ""
	}
	after := 1
	if r.name != runtimeName {
		after++
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.settings.port+after))
}
