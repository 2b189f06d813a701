package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"           //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Not released.
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
	// exited is closed when the process has ended and none follows. Then stopped is the error of
	// stop.
	exited  chan struct{}
	stopped error
	// webhook and metrics are the addresses of its servers.
	webhook, metrics string
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
	r.agent = &agent{log: log, metrics: r.metricsAddr(), stopping: make(chan struct{}), exited: make(chan struct{})}
	for _, address := range []*string{&r.agent.webhook, &r.agent.metrics} {
		if *address != "" {
			continue
		}
		if *address, err = machine.FreeAddress(ctx); err != nil {
			return "", err
		}
	}
	process, err := r.launch()
	if err != nil {
		return "", err
	}
	r.closers = append(r.closers, r.agent.stop)
	go r.keepRunning(ctx, process)
	return r.describeAgent(ctx, process.Pid())
}

// file returns a path in a folder of the demo. The first runtime has no prefix.
func (r *remote) file(folder, name string) string {
	if r.name != runtimeName {
		name = r.name + "-" + name
	}
	return filepath.Join(r.dir, folder, name)
}

// launch starts a process, and writes its ID to a file.
func (r *remote) launch() (*machine.Process, error) {
	output := &lines{file: r.agent.log, each: r.readLog}
	process, err := machine.Start(output, r.agentBinary, r.agentSettings(), nil)
	if err != nil {
		return nil, err
	}
	return process, os.WriteFile(r.file("", "agent.pid"), []byte(strconv.Itoa(process.Pid())), 0o600)
}

// keepRunning runs the agent until stop is called, and starts it again with --serve. Otherwise its
// end is the failure of the demo.
func (r *remote) keepRunning(ctx context.Context, process *machine.Process) {
	defer close(r.agent.exited)
	for {
		select {
		case <-process.Exited():
		case <-r.agent.stopping:
			r.agent.stopped = stop(process)
			return
		}
		switch {
		case endedBy(process, syscall.SIGINT) && interrupted(ctx):
			return
		case !r.settings.serve:
			r.fail(fmt.Errorf("the agent ended: %s\n  next: see agent.log", process.State()))
			return
		}
		select {
		case <-r.agent.stopping:
			return
		case <-time.After(restartAfter):
		}
		var err error
		if process, err = r.launch(); err != nil {
			r.fail(fmt.Errorf("the agent does not start again: %w", err))
			return
		}
	}
}

// stop ends the process and its successors.
func (a *agent) stop() error {
	close(a.stopping)
	<-a.exited
	return a.stopped
}

// stop ends a process. One that stands still goes on first.
func stop(process *machine.Process) error {
	_ = process.Signal(syscall.SIGCONT) // It may have ended.
	process.Stop()
	if endedBy(process, syscall.SIGKILL) {
		return errors.New("the agent did not end in time and was killed")
	}
	return nil
}

func endedBy(process *machine.Process, signal syscall.Signal) bool {
	status, ok := process.State().Sys().(syscall.WaitStatus)
	return ok && status.Signal() == signal
}

// interrupted reports whether a Ctrl-C, which ended the agent, has also ended the demo. A process
// that begins is for a moment in the group of its parent, and gets the signal first.
func interrupted(ctx context.Context) bool {
	const patience = time.Second
	select {
	case <-ctx.Done():
		return true
	case <-time.After(patience):
		return false
	}
}

// agentSettings returns those of a Deployment.
func (r *remote) agentSettings() []string {
	ca, cert, key := r.secret.Paths()
	transport, address := "https", r.operator.addr
	if r.broker != nil {
		transport, address = "nats", r.broker.addr
	}
	settings := []string{
		"WEBHOOK_PORT=" + portOf(r.agent.webhook), "WEBHOOK_BIND=127.0.0.1",
		"METRICS_PORT=" + portOf(r.agent.metrics), "METRICS_BIND=127.0.0.1",
		"CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
		"TRANSPORT=" + transport, "KCP_ADDR=" + address,
		"KCP_CONTRACT=" + string(r.settings.contract), "MANAGERS=" + component,
		"SETTLE=" + settle.String(), "LOG_LEVEL=debug", "SHUTDOWN_TIMEOUT=5s",
		"RESEND_AFTER=20s", // For a slow machine, which commits after the settle time.
	}
	for _, name := range []string{"RESEND_AFTER", "RESEND_RESYNC"} { // For a test on a busy machine.
		if value, set := os.LookupEnv(name); set {
			settings = append(settings, name+"="+value)
		}
	}
	return append(settings, r.canarySettings()...)
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // A free one, or from metricsAddr.
	return port
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

// createCanary creates the Lease of the canary for --serve, and a service account that may write
// it.
func (r *remote) createCanary(ctx context.Context) error {
	if !r.settings.serve || r.settings.contract != contract.V3 {
		return nil
	}
	r.canary = types.NamespacedName{Namespace: namespace, Name: "canary"}
	token, err := lab.CreateCanary(ctx, r.cluster.Client, r.canary)
	return errors.Join(err, os.WriteFile(r.file("keys", "token"), token, 0o600),
		os.WriteFile(r.file("keys", "api-server.crt"), r.cluster.Config.CAData, 0o600))
}

// canarySettings make a failure visible six times as fast as by default.
func (r *remote) canarySettings() []string {
	if r.canary.Name == "" {
		return nil
	}
	return []string{
		"CANARY_LEASE=" + r.canary.String(), "CANARY_API_SERVER=" + r.cluster.Config.Host,
		"CANARY_TOKEN_FILE=" + r.file("keys", "token"), "CANARY_CA_CERT=" + r.file("keys", "api-server.crt"),
		"CANARY_INTERVAL=5s", "HEARTBEAT_INTERVAL=5s",
	}
}
