package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"           //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Not released.
)

// settle is the time for which the agent holds back an event, because it sees a write before the
// commit.
var settle = outbox.Defaults().Settle

// settleChecked is the shorter time that applies while the operator checks the reads of its
// reconciles.
var settleChecked = outbox.Defaults().SettleChecked

// restartAfter is the time after which an agent that ended starts again with --serve, as a kubelet
// starts it.
const restartAfter = 10 * time.Second

// remote is a runtime: its cluster, its key material and its agent.
type remote struct {
	*demo

	name    string
	cluster *apiserver.ControlPlane
	secret  *testpki.Volume
	agent   *lab.Agent
	// canary is the canary with --serve.
	canary lab.Canary
}

// startAgent starts the agent with the settings of a Deployment. It returns when the agent is ready
// and, where the contract allows one, after the reconcile for its resync.
func (r *remote) startAgent() string {
	if r.settings.serve && r.settings.contract == contract.V3 {
		r.canary = *lab.NewCanary(r, r.cluster, "canary")
	}

	opts := lab.AgentOptions{Env: r.agentSettings(), Name: r.withPrefix("agent"), MetricsPort: r.metricsPort()}
	r.agent = lab.StartAgent(r, r.secret, r.operator.addr, opts)
	r.writePID()

	log, err := os.Open(r.LogFile(r.withPrefix("agent.log")))
	lab.NoError(r, err)
	go r.readLog(log)

	if r.settings.serve {
		r.keepRunning()
	} else {
		r.failsWith(r.agent.Process, "the agent", "agent.log")
	}

	text := fmt.Sprintf("in the runtime: process %d, speaks contract %s", r.agent.Pid(), r.settings.contract)
	if r.settings.contract.NeedsOwner() {
		return text // The first object names the owner, so there is no resync before it.
	}

	// Earlier changes are unknown.
	r.await("the resync at the start of the agent, and its reconcile", func() bool {
		resyncs := slices.ContainsFunc(r.journal.since(0, listenerAccepts), func(e entry) bool {
			return e.about == aResync && string(e.runtime) == r.name
		})
		return resyncs && len(r.journal.since(0, operatorReconciles)) > len(registered())
	})
	return text + ", requests a resync"
}

// withPrefix returns the name of a file. The first runtime has no prefix.
func (r *remote) withPrefix(name string) string {
	if r.name != runtimeName {
		return r.name + "-" + name
	}
	return name
}

func (r *remote) writePID() {
	r.writeFile(r.withPrefix("agent.pid"), []byte(strconv.Itoa(r.agent.Pid())))
}

// keepRunning starts the agent again when it has ended, until the demo ends.
func (r *remote) keepRunning() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-r.agent.Exited():
			case <-r.Context().Done():
				return
			}

			select {
			case <-time.After(restartAfter):
			case <-r.Context().Done():
				return
			}

			r.agent.Launch()
			r.writePID()
		}
	}()
	r.Cleanup(func() { <-stopped })
}

// agentSettings returns the settings of a Deployment. With a canary, a failure is visible six times
// as fast as by default.
func (r *remote) agentSettings() map[string]string {
	settings := map[string]string{
		"WEBHOOK_BIND": "127.0.0.1", "METRICS_BIND": "127.0.0.1",
		"CONTROL_PLANE_CONTRACT": string(r.settings.contract), "MANAGERS": component,
		"SETTLE": settle.String(), "LOG_LEVEL": "debug",
		"RESEND_AFTER": "20s", // For a slow machine, which commits after the settle time.
	}
	if r.broker != nil {
		settings["TRANSPORT"] = "nats"
		settings["CONTROL_PLANE_ADDRESS"] = r.broker.Nodes[0].Addr
	}

	for _, name := range []string{"RESEND_AFTER", "RESEND_RESYNC"} { // For a test on a busy machine.
		if value, set := os.LookupEnv(name); set {
			settings[name] = value
		}
	}

	for name, value := range r.canary.Env {
		settings[name] = value
		settings["CANARY_INTERVAL"] = "5s"
		settings["HEARTBEAT_INTERVAL"] = "5s"
	}
	return settings
}

// metricsPort returns the fixed port of the metrics with --serve, 0 without one.
func (r *remote) metricsPort() int {
	if !r.settings.serve || r.settings.port == 0 {
		return 0
	}
	return r.settings.port + 1 + slices.Index(r.remotes, r)
}

var reviewed = regexp.MustCompile(`"msg":"reviewed".*"decision":"(\w+)"`)

// readLog takes the decisions from the log of the agent, until the demo ends.
func (r *remote) readLog(log io.ReadCloser) {
	defer log.Close()

	const often = 20 * time.Millisecond
	var rest []byte
	for r.Context().Err() == nil {
		added, _ := io.ReadAll(log) // The file grows.
		rest = append(rest, added...)

		end := bytes.LastIndexByte(rest, '\n') + 1
		for _, found := range reviewed.FindAllSubmatch(rest[:end], -1) {
			r.journal.enter(entry{where: agentDecides, about: string(found[1])}, "decides: %s", found[1])
		}

		rest = rest[end:]
		<-time.After(often)
	}
}
