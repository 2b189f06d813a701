package loss

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

const (
	manager = "kyma"
	// heartbeat is short, so that a test detects the silence of a replica in time.
	heartbeat = 2 * time.Second
	// canaryInterval is about the time until a removed webhook is noticed. [Schedule] removes it for
	// longer.
	canaryInterval = time.Second
	// grace is the time in which the API server is still led to an agent that is gone, as by a
	// Service.
	grace = time.Second
	// patienceOfAPIServer is longer than the default. On a busy machine an agent may need more than
	// two seconds, and only the metrics of the API server count a write that it does not wait for.
	patienceOfAPIServer = 10 * time.Second
	// label is that of the objects that are watched, with the name of the scene, so that scenes
	// share one API server.
	label = "example.com/scene"
)

// sender is the program in the runtime: the agent, or the naive forwarder.
type sender struct {
	*lab.Process

	agent *lab.Agent // nil: naive
	port  int
}

// scene is one runtime with its sender and objects, and an operator. Scenes share an API server.
type scene struct {
	t     *testing.T
	name  string
	plane *apiserver.ControlPlane
	pki   *lab.PKI

	with          setup
	cas           []*testpki.CA // that follow one another
	secrets       []*secret
	path          *Path
	gate          *lab.Relay        // from agents that watch to the API server; nil: admission
	brokers       []*lab.BrokerNode // none: HTTP
	cable         *lab.Relay        // from the operator to the first broker
	operators     []*replica
	gateway       *lab.Nginx // nil: none
	senders       []*sender
	address       net.Listener // of the service, reserved until the service starts
	service       *lab.Relay
	canary        *lab.Canary
	configuration client.Object

	looks      []record.Look
	deliveries []record.Delivery
	lost       *sender // a replica that was killed for good
}

// newScene starts all parts of a schedule, with agents or with naive forwarders, and returns when a
// write is noticed.
func newScene(t *testing.T, plane *apiserver.ControlPlane, pki *lab.PKI, schedule Schedule,
	with setup,
) *scene {
	t.Helper()
	s := &scene{t: t, plane: plane, pki: pki, with: with, name: fmt.Sprintf("%s-%d", with.name, schedule.Seed)}
	s.cas = []*testpki.CA{pki.CA}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	lab.NoError(s.t, plane.Client.Create(t.Context(), namespace))
	lab.AddRuntime(t, plane, s.name, s.domain())
	s.address = lab.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", lab.Address(lab.FreePort(t))))
	t.Cleanup(func() { _ = s.address.Close() })
	env := s.newSource()
	s.startOperators()
	volume := s.newSecret(true, "", func(ca *testpki.CA) (*testpki.Leaf, error) { return lab.RuntimeLeaf(ca, s.name, s.domain()) })
	for replica := range schedule.Replicas {
		if with.naive {
			s.senders = append(s.senders, s.startNaive(volume))
		} else {
			s.senders = append(s.senders, s.startAgent(volume, env, replica, schedule.MaxKeys))
		}
	}
	s.startService()
	if with.source == sourceAdmission {
		s.register()
	}
	s.awaitEvents()
	return s
}

func (s *scene) domain() string { return s.name + ".example.com" }

func (s *scene) startAgent(volume *testpki.Volume, source map[string]string, replica, maxKeys int) *sender {
	s.t.Helper()
	env := maps.Clone(source)
	maps.Copy(env, map[string]string{
		"CONTROL_PLANE_CONTRACT": "v3", "MANAGERS": manager, "HEARTBEAT_INTERVAL": heartbeat.String(),
		"SETTLE": settle.String(), "RESEND_AFTER": resend.String(),
		"RESEND_RESYNC": (patienceOfAPIServer + 2*time.Second).String(), "INSTANCE": "agent-" + strconv.Itoa(replica),
	})
	if maxKeys > 0 {
		env["OUTBOX_MAX_KEYS"] = strconv.Itoa(maxKeys)
	}
	if s.with.transport == transportNATS {
		env["TRANSPORT"] = transportNATS
	}
	agent := lab.StartAgent(s.t, volume, s.path.Addr(), lab.AgentOptions{Env: env})
	return &sender{Process: agent.Process, agent: agent, port: agent.WebhookPort}
}

func (s *scene) startNaive(volume *testpki.Volume) *sender {
	s.t.Helper()
	ca, cert, key := volume.Paths()
	port := lab.FreePort(s.t)
	process := lab.NewProcess(s.t, "naive forwarder", lab.Build(s.t, "test/lab/today/skrwebhook"), []string{
		"WEBHOOK_PORT=" + strconv.Itoa(port), "KCP_ADDR=" + s.path.Addr(), "KCP_CONTRACT=v2", "CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
	})
	process.Launch()
	return &sender{Process: process, port: port}
}

// startService starts the service that the API server calls. It spreads connections over the
// replicas.
func (s *scene) startService() {
	s.t.Helper()
	var backends []string
	for _, sender := range s.senders {
		backends = append(backends, lab.Address(sender.port))
	}
	s.service = lab.Must(lab.NewRelayOn(s.address, grace, backends...))
	s.t.Cleanup(s.service.Close)
}

func (s *scene) newConfiguration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	return lab.Must(admission.WebhookConfiguration(s.name, admission.Endpoint{
		URL: "https://" + s.service.Addr(), CABundle: testpki.Bundle(s.cas...),
	}, []watch.Watch{s.watch()}, admission.ConfigurationOptions{Canary: s.canary.Lease, Timeout: patienceOfAPIServer}))
}

func (s *scene) watch() watch.Watch {
	return watch.Watch{
		Name:    types.NamespacedName{Namespace: lab.Namespace, Name: s.name},
		Manager: manager, Resource: lab.Widgets(), Selector: watch.Selector{Labels: s.labels()},
	}
}

func (s *scene) labels() map[string]string { return map[string]string{label: s.name} }

// register makes the API server call the service.
func (s *scene) register() {
	s.t.Helper()
	s.configuration = s.newConfiguration()
	lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), s.configuration))
}

// unregister removes the configuration of the webhook.
func (s *scene) unregister() {
	s.t.Helper()
	lab.NoError(s.t, s.plane.Client.Delete(s.t.Context(), s.configuration))
}

// awaitEvents creates objects until the operator gets an event of one.
func (s *scene) awaitEvents() {
	s.t.Helper()
	n := 0
	lab.Eventually(s.t, patience, "a write reaches the operator", func() bool {
		n++
		if n%5 == 1 {
			probe := lab.Widget(s.name, fmt.Sprintf("probe-%d", n), s.labels(), 0)
			lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), probe))
		}
		s.read()
		return slices.ContainsFunc(s.looks, func(l record.Look) bool { return l.Object != "" })
	})
}

// read adds the records of the operator since the last call.
func (s *scene) read() {
	s.t.Helper()
	for _, one := range s.operators {
		for _, e := range lab.Must(one.records.Next()) {
			switch {
			case e.Look != nil:
				s.looks = append(s.looks, *e.Look)
			case e.Delivery != nil:
				s.deliveries = append(s.deliveries, *e.Delivery)
			}
		}
	}
}

// loseWatch breaks the way from agents that watch to the API server of the runtime.
func (s *scene) loseWatch(f Fault) {
	switch f.Strength % 3 {
	case 0:
		s.gate.Refuse()
	case 1:
		s.gate.Hold(true)
		s.gate.Cut()
	default:
		s.gate.Freeze()
	}
}

// newSource prepares the runtime for its agents, and returns their settings.
func (s *scene) newSource() map[string]string {
	s.t.Helper()
	if s.with.source == sourceInformer {
		return s.newInformer()
	}
	s.canary = lab.NewCanary(s.t, s.plane, s.name)
	env := maps.Clone(s.canary.Env)
	env["CANARY_INTERVAL"] = canaryInterval.String()
	if s.with.source == sourceKept {
		return s.newKept(env)
	}
	return env
}

// newInformer opens the way to the API server of the runtime, and grants the right to watch.
func (s *scene) newInformer() map[string]string {
	s.t.Helper()
	s.gate = lab.Must(lab.NewRelay(lab.Address(lab.FreePort(s.t)), 0, strings.Trim(strings.TrimPrefix(s.plane.Config.Host, "https:"), "/")))
	s.t.Cleanup(s.gate.Close)
	env := map[string]string{}
	lab.Inform(s.t, s.plane, s.name, env, s.watch())
	env["INFORMER_API_SERVER"] = "https://" + s.gate.Addr()
	return env
}
