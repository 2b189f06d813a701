package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// canaryInterval is that of the canary, and of the heartbeats that report it.
const canaryInterval = 2 * time.Second

// canaryScene is a runtime with two replicas of the agent that share one Lease.
type canaryScene struct {
	*scene

	canary  *lab.Canary
	fleet   *fleet.Fleet
	replica *lab.Agent
}

func newCanaryScene(t *testing.T) *canaryScene {
	t.Helper()
	f, err := fleet.New(fleet.Options{ResyncJitter: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := &canaryScene{fleet: f}
	s.scene = newClusters(t, lab.OperatorOptions{Listener: listener.Options{Fleet: f}})
	s.canary = lab.NewCanary(t, s.runtime, "runtime-watcher-canary")
	env := maps.Clone(s.canary.Env)
	env["MANAGERS"], env["CANARY_INTERVAL"], env["HEARTBEAT_INTERVAL"] = manager, canaryInterval.String(),
		canaryInterval.String()
	env["KCP_CONTRACT"] = string(contract.V3)
	env["RESEND_RESYNC"] = "0s" // They are counted.
	t.Cleanup(s.remove)
	s.agent = s.startAgent(env, "one")
	s.replica = s.startAgent(env, "two")
	return s
}

func (s *canaryScene) startAgent(env map[string]string, instance string) *lab.Agent {
	env = maps.Clone(env)
	env["INSTANCE"] = instance
	return lab.StartAgent(s.t, s.pki.RuntimeVolume(runtime, domain), s.operatorOptions.Addr, lab.AgentOptions{Env: env})
}

// configuration leads to the first replica only, which also reviews the writes of the second one.
func (s *canaryScene) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	s.t.Helper()
	configuration, err := admission.WebhookConfiguration("runtime-watcher",
		admission.Endpoint{URL: "https://" + lab.Address(s.agent.WebhookPort), CABundle: s.pki.CA.PEM},
		[]watch.Watch{{
			Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"},
			Manager:  manager,
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
			Selector: watch.Selector{Labels: watched()},
		}}, admission.ConfigurationOptions{Canary: s.canary.Lease})
	if err != nil {
		s.t.Fatal(err)
	}
	return configuration
}

// canaries counts the states in the last heartbeats of the replicas.
func (s *canaryScene) canaries() map[core.CanaryState]int {
	found := make(map[core.CanaryState]int)
	for _, replica := range s.fleet.Get(runtime, manager).Replicas {
		if replica.Heartbeat != nil {
			found[replica.Heartbeat.Canary]++
		}
	}
	return found
}

// await waits until both replicas report a state, and the fleet has the state that follows.
func (s *canaryScene) await(what string, canary core.CanaryState, state fleet.State, reason string) {
	s.t.Helper()
	began := time.Now()
	lab.Eventually(s.t, patience, fmt.Sprintf("%s: both canaries are %s, the runtime is %s %s", what, canary,
		state, reason), func() bool {
		status := s.fleet.Get(runtime, manager)
		return s.canaries()[canary] == 2 && status.State == state && status.Reason == reason
	})
	s.t.Logf("%s: %s %s after %v", what, state, reason, time.Since(began).Round(time.Millisecond))
}

// beats waits until each replica has sent so many more heartbeats.
func (s *canaryScene) beats(more uint64) {
	s.t.Helper()
	numbers := func() map[string]uint64 {
		found := make(map[string]uint64)
		for _, replica := range s.fleet.Get(runtime, manager).Replicas {
			found[replica.Epoch] = replica.Heartbeat.Number
		}
		return found
	}
	before := numbers()
	lab.Eventually(s.t, patience, fmt.Sprintf("%d more heartbeats", more), func() bool {
		for epoch, number := range numbers() {
			if number < before[epoch]+more {
				return false
			}
		}
		return true
	})
}

// stalls counts the stalls of the replicas on a busy machine. Each has a resync.
func (s *canaryScene) stalls() int {
	const stalls = "runtime_watcher_agent_stalls_total"
	return int(s.agent.Metric(stalls) + s.replica.Metric(stalls))
}

func (s *canaryScene) remove() {
	if err := s.runtime.Client.Delete(context.WithoutCancel(s.t.Context()), s.configuration()); err != nil {
		s.t.Error(err)
	}
}

func (s *canaryScene) put(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) {
	s.t.Helper()
	current := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := s.runtime.Client.Get(s.t.Context(), client.ObjectKeyFromObject(configuration), current)
	switch {
	case apierrors.IsNotFound(err):
		err = s.runtime.Client.Create(s.t.Context(), configuration)
	case err == nil:
		configuration.ResourceVersion = current.ResourceVersion
		err = s.runtime.Client.Update(s.t.Context(), configuration)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestCanary(t *testing.T) {
	s := newCanaryScene(t)
	nobody := lab.Address(lab.FreePort(t))
	s.await("before there is a configuration", core.CanaryLost, fleet.Degraded, reasons.CanaryLost)
	s.awaitResyncs(2) // One of each replica, at its start.
	s.put(s.configuration())
	s.await("with a configuration", core.CanaryAlive, fleet.Fresh, "")
	s.awaitResyncs(4) // One more of each, when its canary was proved first.
	change := func(change func(*admissionregistrationv1.WebhookClientConfig)) func() {
		return func() {
			configuration := s.configuration()
			for i := range configuration.Webhooks {
				change(&configuration.Webhooks[i].ClientConfig)
			}
			s.put(configuration)
		}
	}
	for _, fault := range []struct {
		name   string
		inject func()
	}{
		{"removed", s.remove},
		{"wrong path", change(func(c *admissionregistrationv1.WebhookClientConfig) { *c.URL += "/nowhere" })},
		{
			"no server at the URL",
			change(func(c *admissionregistrationv1.WebhookClientConfig) {
				c.URL = new("https://" + nobody +
					"/canary")
			}),
		},
	} {
		before, stalls := s.resyncs(), s.stalls()
		fault.inject()
		s.await(fault.name, core.CanaryLost, fleet.Degraded, reasons.CanaryLost)
		s.beats(1)
		if got := s.resyncs() - before; got > s.stalls()-stalls {
			t.Errorf("%s: %d resyncs before anything was mended, want none", fault.name, got)
		}
		s.put(s.configuration())
		s.await(fault.name+", mended", core.CanaryAlive, fleet.Fresh, "")
		s.awaitResyncs(before + 2)
		s.beats(2)
		if got := s.resyncs() - before; got > 2+s.stalls()-stalls {
			t.Errorf("%s: %d resyncs after it was mended, want one of each replica", fault.name, got)
		}
	}
	if states := s.agent.Metric("runtime_watcher_agent_canary_state", `state="alive"`); states != 1 {
		t.Errorf("metric of the state is %v, want 1", states)
	}
	if refused := s.agent.Metric("runtime_watcher_agent_admission_refusals_total",
		`reason="unknown_path"`); refused == 0 {
		t.Error("no refusal counted for the wrong path")
	}
}
