package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// settle is the time for which the agent holds an event back, as it sees a write before the commit.
var settle = outbox.Defaults().Settle

// agent is a process of the agent.
type agent struct {
	process *os.Process
	exited  chan struct{}

	mu sync.Mutex
	// addresses has the address of each server from the log: the agent takes free ports.
	addresses map[string]string
}

// startAgent starts the agent with the settings of a Deployment, and returns when it is ready.
func (d *demo) startAgent(ctx context.Context) (string, error) {
	log, err := os.Create(filepath.Join(d.logs, "agent.log"))
	if err != nil {
		return "", err
	}

	d.closers = append(d.closers, log.Close)
	d.agent = &agent{exited: make(chan struct{}), addresses: make(map[string]string)}

	cmd := exec.Command(d.agentBinary) //nolint:noctx // stop ends it with SIGTERM.
	cmd.Env = d.agentSettings()
	cmd.Stderr = &lines{file: log, each: d.readLog}
	cmd.SysProcAttr = machine.OwnGroup()

	if err := cmd.Start(); err != nil {
		return "", err
	}

	d.agent.process = cmd.Process
	d.closers = append(d.closers, d.agent.stop)

	go func() {
		_ = cmd.Wait() // ProcessState says the same, and also reports exit code 0.
		close(d.agent.exited)
		if interrupted(ctx, cmd.ProcessState) {
			return
		}
		d.fail(fmt.Errorf("the agent ended: %s\n  next: see agent.log", cmd.ProcessState))
	}()
	return d.describeAgent(ctx)
}

// describeAgent waits until the agent is ready and, where the contract allows one, for its resync.
func (d *demo) describeAgent(ctx context.Context) (string, error) {
	if err := d.awaitAgent(ctx); err != nil {
		return "", err
	}
	text := fmt.Sprintf("in the runtime: process %d, speaks contract %s", d.agent.process.Pid, d.settings.contract)
	if d.settings.contract.NeedsOwner() {
		return text, nil // The first object names the owner, so there is no resync before it.
	}
	return text + ", requests a resync", d.awaitResync(ctx)
}

// awaitResync returns after the reconcile for the start of the agent: earlier changes are unknown.
func (d *demo) awaitResync(ctx context.Context) error {
	return d.journal.await(ctx, "the resync at the start of the agent, and its reconcile", func() bool {
		resyncs := slices.ContainsFunc(d.journal.deliveries, func(d core.Delivery) bool { return d.Event.Resync })
		return resyncs && len(d.journal.reconciles) > len(registered())
	})
}

func (d *demo) agentSettings() []string {
	ca, cert, key := d.pki.runtime.Paths()
	transport, address := "https", d.operator.addr
	if d.broker != nil {
		transport, address = "nats", d.broker.addr
	}
	return []string{
		"WEBHOOK_PORT=0", "WEBHOOK_BIND=127.0.0.1", "METRICS_PORT=0", "METRICS_BIND=127.0.0.1",
		"CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
		"TRANSPORT=" + transport, "KCP_ADDR=" + address,
		"KCP_CONTRACT=" + string(d.settings.contract), "MANAGERS=" + component,
		"SETTLE=" + settle.String(), "LOG_LEVEL=debug", "SHUTDOWN_TIMEOUT=2s",
		"RESEND_AFTER=0s", // No other webhook delays a commit here. A resend would start one more reconcile.
	}
}

// awaitAgent returns when the agent is ready.
func (d *demo) awaitAgent(ctx context.Context) (err error) {
	ready := func() bool {
		err = d.agent.ready(ctx)
		return err == nil
	}
	if poll(ctx, ready) != nil {
		return fmt.Errorf("the agent is not ready: %w", err)
	}
	return nil
}

// poll calls done every 20 ms until it returns true. It fails after patience, and when ctx ends.
func poll(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

func (a *agent) ready(ctx context.Context) error {
	if a.webhook() == "" || a.metrics() == "" {
		return errors.New("no addresses in its log yet")
	}
	_, err := a.get(ctx, "/readyz")
	return err
}

func (a *agent) webhook() string { return a.address("webhook") }
func (a *agent) metrics() string { return a.address("metrics") }

func (a *agent) address(server string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addresses[server]
}

// interrupted reports whether a Ctrl-C ended both the process and the demo. A process that begins
// is for a moment in the group of its parent, and gets the signal first.
func interrupted(ctx context.Context, state *os.ProcessState) bool {
	const patience = time.Second
	if status, ok := state.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		return false
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(patience):
		return false
	}
}

// stop ends the process, after a grace period with SIGKILL.
func (a *agent) stop() error {
	const grace = 5 * time.Second

	select {
	case <-a.exited:
		return nil
	default:
	}

	_ = a.process.Signal(syscall.SIGTERM) // It may have ended.

	select {
	case <-a.exited:
		return nil
	case <-time.After(grace):
	}

	_ = a.process.Kill() // It may have ended.
	<-a.exited

	return fmt.Errorf("the agent did not end within %v and was killed", grace)
}

// get returns a response of the metrics server of the agent.
func (a *agent) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.metrics()+path, http.NoBody)
	if err != nil {
		return nil, err
	}

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()

	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, body)
	}

	return body, err
}

// events returns the fates of events from the metrics of the agent, by the end of the name.
func (a *agent) events(ctx context.Context) (map[string]float64, error) {
	text, err := a.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	counts := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(series, "{")
		if fate, found := strings.CutPrefix(name, "runtime_watcher_agent_events_"); found {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", series, err)
			}
			counts[fate] += n
		}
	}
	return counts, nil
}

// readLog takes addresses and decisions from a line of the agent's log.
func (d *demo) readLog(line []byte) {
	var record struct {
		Msg      string `json:"msg"`
		Server   string `json:"server"`
		Address  string `json:"address"`
		Decision string `json:"decision"`
	}

	if json.Unmarshal(line, &record) != nil {
		return // Such as a panic. The file has it.
	}

	switch record.Msg {
	case "listening":
		d.agent.mu.Lock()
		d.agent.addresses[record.Server] = record.Address
		d.agent.mu.Unlock()
	case "reviewed":
		d.journal.decided(record.Decision)
	}
}

// lines copies its input to a file, and passes on each line.
type lines struct {
	file io.Writer
	each func(line []byte)
	rest []byte
}

// Write implements [io.Writer].
func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.each(line)
		l.rest = rest
	}
	return l.file.Write(text)
}
