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
)

// settle is how long the agent waits before it sends an event: it sees a write before that is committed.
const settle = outbox.DefaultSettle

// agent is the agent as a process of its own.
type agent struct {
	process *os.Process
	exited  chan struct{}

	mu sync.Mutex
	// addresses are those of its servers, by name. It takes free ports and tells them in its log.
	addresses map[string]string
}

// startAgent runs the agent with what a Deployment would set, and returns when it is ready.
func (s *scene) startAgent(ctx context.Context) (string, error) {
	log, err := os.Create(filepath.Join(s.logs, "agent.log"))
	if err != nil {
		return "", err
	}

	s.closers = append(s.closers, log.Close)
	s.agent = &agent{exited: make(chan struct{}), addresses: make(map[string]string)}

	cmd := exec.Command(s.agentBinary) //nolint:noctx // It is ended in good order, with its SIGTERM.
	cmd.Env = s.agentSettings()
	cmd.Stderr = &lines{file: log, each: s.readLog}
	cmd.SysProcAttr = ownGroup()

	if err := cmd.Start(); err != nil {
		return "", err
	}

	s.agent.process = cmd.Process
	s.closers = append(s.closers, s.agent.stop)

	go func() {
		err := cmd.Wait()
		close(s.agent.exited)
		s.fail(fmt.Errorf("the agent ended: %w\n  next: see agent.log", errors.Join(err, errors.New(cmd.ProcessState.String()))))
	}()

	if err := s.awaitAgent(ctx); err != nil {
		return "", err
	}

	said := fmt.Sprintf("in the runtime: process %d, speaks contract %s", cmd.Process.Pid, s.settings.contract)
	if s.settings.contract.NeedsOwner() {
		return said, nil // Who is to look at it, the agent knows from the first object only.
	}

	return said + ", asks for a first look", s.awaitResync(ctx)
}

// awaitResync returns when the operator has looked at the runtime because its agent has started: nobody knows what happened before.
func (s *scene) awaitResync(ctx context.Context) error {
	return s.diary.await(ctx, "the resync of an agent that starts, and the reconcile after it", func() bool {
		resyncs := slices.ContainsFunc(s.diary.deliveries, func(d core.Delivery) bool { return d.Event.Resync })

		return resyncs && len(s.diary.reconciles) > len(registered())
	})
}

func (s *scene) agentSettings() []string {
	ca, cert, key := s.pki.runtime.Paths()

	return []string{
		"WEBHOOK_PORT=0", "WEBHOOK_BIND=127.0.0.1", "METRICS_PORT=0", "METRICS_BIND=127.0.0.1",
		"CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
		"KCP_ADDR=" + s.operator.addr, "KCP_CONTRACT=" + string(s.settings.contract), "MANAGERS=" + component,
		"SETTLE=" + settle.String(), "LOG_LEVEL=debug", "SHUTDOWN_TIMEOUT=2s",
	}
}

// awaitAgent returns when the agent says that it is ready.
func (s *scene) awaitAgent(ctx context.Context) error {
	const often = 20 * time.Millisecond

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	tick := time.NewTicker(often)
	defer tick.Stop()

	for {
		err := s.agent.ready(ctx)
		if err == nil {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", err)
		case <-tick.C:
		}
	}
}

func (a *agent) ready(ctx context.Context) error {
	if a.webhook() == "" || a.metrics() == "" {
		return errors.New("its log names no addresses yet")
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

// stop asks the process to end, and makes it end when it does not.
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

// get returns what the agent answers on its metrics port.
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

// events returns how many events had that fate, as the agent's metrics count them.
func (a *agent) events(ctx context.Context, fates ...string) (map[string]float64, error) {
	text, err := a.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}

	counts := make(map[string]float64)

	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(series, "{")

		for _, fate := range fates {
			if name == "runtime_watcher_agent_events_"+fate {
				n, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return nil, fmt.Errorf("metric %s: %w", series, err)
				}

				counts[fate] += n
			}
		}
	}

	return counts, nil
}

// readLog takes from a line of the agent's log where it listens, and what it decides.
func (s *scene) readLog(line []byte) {
	var record struct {
		Msg      string `json:"msg"`
		Server   string `json:"server"`
		Address  string `json:"address"`
		Decision string `json:"decision"`
	}

	if json.Unmarshal(line, &record) != nil {
		return // It is in the file for people to read.
	}

	switch record.Msg {
	case "listening":
		s.agent.mu.Lock()
		s.agent.addresses[record.Server] = record.Address
		s.agent.mu.Unlock()
	case "reviewed":
		s.diary.decided(record.Decision)
	}
}

// lines hands on what is written to it line by line, and to a file.
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
