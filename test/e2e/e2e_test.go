// Package e2e runs the real agent, and its command check, between a real API server and a real listener.
package e2e

import (
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

const (
	manager = "kyma"
	runtime = "runtime-1"
	domain  = "runtime-1.example.com"
)

// scene is one runtime and its control plane.
type scene struct {
	t          *testing.T
	runtime    *apiserver.ControlPlane
	pki        *lab.PKI
	fleet      *fleet.Fleet
	plane      *lab.Plane
	deliveries atomic.Int64
	// resyncs are those of agents. The fleet asks for one if the first heartbeat of an agent overtakes its first resync.
	resyncs atomic.Int64
}

// clusters is held by one test at a time. Others run beside it.
var clusters sync.Mutex

// newScene returns a control plane with SAN pinning, and a runtime without agent.
func newScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	clusters.Lock()
	t.Cleanup(clusters.Unlock)
	s := &scene{
		t: t, runtime: lab.SharedAPIServer(t, apiserver.Options{}), pki: lab.NewPKI(t),
		fleet: lab.Must(fleet.New(fleet.Options{ResyncJitter: time.Millisecond})),
	}
	s.plane = lab.StartPlane(t, s.pki, lab.PlaneOptions{
		Verifier: lab.Pinning(), Listener: listener.Options{Fleet: s.fleet},
		Delivered: func(d core.Delivery) {
			s.deliveries.Add(1)
			if d.Event.Resync && !d.Event.Time.Equal(d.Received) {
				s.resyncs.Add(1)
			}
		},
	}, manager)
	return s
}

func watchedConfigMaps() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: lab.Namespace, Name: "configmaps"},
		Manager:  manager,
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Selector: watch.Selector{Labels: map[string]string{"watched": "true"}},
	}
}

type env = map[string]string

// mistake is a change of the settings of a correct set-up, and the line that must name it.
type mistake struct {
	change env
	code   int
	line   string // a pattern
}

// TestCheck runs "agent check" as a process, against an operator with SAN pinning and the Lease of a
// real API server.
func TestCheck(t *testing.T) {
	s := newScene(t)
	sound := lab.NewCanary(t, s.runtime, "check-canary").Env
	maps.Copy(sound, lab.VolumeEnv(s.pki.RuntimeVolume(runtime, domain)))
	sound["CONTROL_PLANE_ADDRESS"] = s.plane.Addr
	sound["MANAGERS"] = manager
	awaitOperator(t, sound)
	for name, m := range s.mistakes() {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(sound)
			maps.Copy(env, m.change)
			out, code := lab.Check(t, env)
			if code != m.code {
				t.Errorf("exit code %d, want %d", code, m.code)
			}
			if line := lab.Telling(out, m.code); !regexp.MustCompile(`^` + m.line).MatchString(line) {
				t.Errorf("line %q, want a match of %s", line, m.line)
			}
			t.Logf("\n%s", out)
		})
	}
}

// serve runs a server with the certificate of the control plane, and returns its address.
func (s *scene) serve(handler http.Handler) string {
	s.t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.TLS = keys.ServerTLSConfig(s.pki.ServerMaterial())
	server.EnableHTTP2 = true
	server.StartTLS()
	s.t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func (s *scene) mistakes() map[string]mistake {
	s.t.Helper()
	otherKey := env{"TLS_KEY": lab.VolumeEnv(s.pki.RuntimeVolume(runtime, domain))["TLS_KEY"]}
	otherClient := lab.VolumeEnv(lab.NewPKI(s.t).RuntimeVolume(runtime, domain))
	otherCA := env{"CA_CERT": otherClient["CA_CERT"]}
	delete(otherClient, "CA_CERT")
	closed := lab.Address(lab.FreePort(s.t))
	plain := httptest.NewServer(http.NotFoundHandler())
	s.t.Cleanup(plain.Close)
	silent := lab.Must(net.Listen("tcp", "127.0.0.1:0")) // It accepts connections, and sends nothing.
	s.t.Cleanup(func() { _ = silent.Close() })
	old := s.serve(http.NotFoundHandler()) // It knows contract v2 only, as the deployed ones do.
	denying := s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "RBAC: access denied", http.StatusForbidden) // As a policy of Istio does.
	}))
	names := []string{domain}
	both := lab.BothUsages()
	expired := testpki.Options{DNSNames: names, Usages: both, NotBefore: time.Now().AddDate(0, 0, -9), NotAfter: time.Now().AddDate(0, 0, -1)}
	server := testpki.Options{DNSNames: names, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	stranger := testpki.Options{DNSNames: []string{"runtime-9.example.com"}, Usages: both}
	return map[string]mistake{
		"none":             {nil, 0, `ok    heartbeat .*manager kyma`},
		"missing file":     {env{"TLS_CERT": "/nowhere/tls.crt"}, 2, `FAIL  settings +TLS_CERT: .*no such file.*correct it`},
		"unknown setting":  {env{"CONTROL_PLANE_CONTRACT": "v9"}, 2, `FAIL  settings +CONTROL_PLANE_CONTRACT: .*want one of .v1 v2 v3.`},
		"key of another":   {otherKey, 1, `FAIL  TLS_CERT +keys: key material \S+tls.key .mismatch.: .*take certificate and key of one Secret`},
		"expired":          {s.leaf(expired), 1, `FAIL  TLS_CERT +.*tls.crt .expired.: .*check cert-manager`},
		"server usage":     {s.leaf(server), 1, `FAIL  TLS_CERT usage +.*without clientAuth; want clientAuth`},
		"no name":          {s.leaf(testpki.Options{Usages: both}), 1, `FAIL  TLS_CERT as server +no DNS name .*<service>.<namespace>.svc`},
		"managers file":    {env{"MANAGERS_FILE": s.file("Not/A/Name")}, 1, `FAIL  MANAGERS_FILE +.*Not/A/Name.*correct the ConfigMap`},
		"closed port":      {at(closed), 1, `FAIL  connection +.*refused; want an open port; check CONTROL_PLANE_ADDRESS`},
		"no TLS":           {at(plain.Listener.Addr().String()), 1, `FAIL  TLS .*another protocol`},
		"silent port":      {at(silent.Addr().String()), 1, `FAIL  TLS +no answer in time; want a TLS handshake within 10s`},
		"wrong CA":         {otherCA, 1, `FAIL  TLS .*unknown authority.*want a certificate that CA_CERT issued`},
		"wrong name":       {env{"CONTROL_PLANE_SERVER_NAME": "other.example.com"}, 1, `FAIL  TLS .*set CONTROL_PLANE_SERVER_NAME`},
		"untrusted client": {otherClient, 1, `FAIL  TLS .*want a control plane that accepts TLS_CERT; check the CA bundle`},
		"unknown manager":  {env{"MANAGERS": "nobody"}, 1, `FAIL  heartbeat +manager nobody: unknown_manager: .*correct MANAGERS`},
		"other domain":     {s.leaf(stranger), 1, `FAIL  heartbeat +manager kyma: forbidden: .*: "san_mismatch"; want .*make the SAN of TLS_CERT equal`},
		"old listener":     {at(old), 1, `FAIL  heartbeat +manager kyma: unknown_contract: .*set CONTRACT_FALLBACK`},
		"policy":           {at(denying), 1, `FAIL  heartbeat +manager kyma: gateway_refused: .*let the policy of the gateway allow /v3/`},
		"no Lease":         {env{"CANARY_LEASE": "default/none"}, 1, `FAIL  canary .*403.*Role`},
		"no token":         {env{"CANARY_TOKEN_FILE": s.file("none")}, 1, `FAIL  canary .*401 .*CANARY_TOKEN_FILE`},
		"no API server":    {env{"CANARY_API_SERVER": "https://" + closed}, 1, `FAIL  canary .*refused; want an answer from the API server`},
	}
}

// at has the settings of an agent with the control plane at that address.
func at(address string) env { return env{"CONTROL_PLANE_ADDRESS": address} }

// leaf has the settings of an agent with such a certificate.
func (s *scene) leaf(opts testpki.Options) env {
	s.t.Helper()
	return lab.VolumeEnv(s.pki.Volume(lab.Must(s.pki.CA.Client(runtime, opts))))
}

func (s *scene) file(line string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "file")
	lab.NoError(s.t, os.WriteFile(path, []byte(line+"\n"), 0o600))
	return path
}

// awaitOperator waits until the operator takes the heartbeat of a check, which is a while after it
// started.
func awaitOperator(t *testing.T, sound map[string]string) {
	t.Helper()
	lab.Eventually(t, lab.Patience, "a check of a sound set-up is good", func() bool {
		_, code := lab.Check(t, sound)
		return code == 0
	})
}

// A check before and beside an agent, under the same name, must not confuse the fleet.
func TestCheckBesideAnAgent(t *testing.T) {
	s := newScene(t)
	canary := lab.NewCanary(t, s.runtime, "beside-canary")
	volume := s.pki.RuntimeVolume(runtime, domain)
	env := maps.Clone(canary.Env)
	maps.Copy(env, lab.VolumeEnv(volume))
	maps.Copy(env, map[string]string{
		"MANAGERS": manager, "INSTANCE": "agent-0", "HEARTBEAT_INTERVAL": "2s", "CANARY_INTERVAL": "1s",
		"RESEND_RESYNC": "0s", "CONTROL_PLANE_ADDRESS": s.plane.Addr,
	})
	s.checkBefore(canary, env)
	agent := lab.StartAgent(t, volume, env["CONTROL_PLANE_ADDRESS"], lab.AgentOptions{Env: env})
	lab.Register(t, s.runtime, "check", agent.WebhookPort, s.pki.CA.PEM,
		admission.ConfigurationOptions{Canary: canary.Lease}, watchedConfigMaps())
	lab.Eventually(t, lab.Patience, "the runtime is fresh", func() bool {
		return s.fleet.Get(runtime, manager).State == fleet.Fresh
	})
	awaitHeartbeats := func(more uint64) {
		number := func() uint64 { return s.fleet.Get(runtime, manager).Replicas[0].Heartbeat.Number }
		before := number()
		lab.Eventually(t, lab.Patience, "more heartbeats", func() bool { return number() > before+more })
	}
	// The first resyncs, and stalls of a busy machine, may come between. A check that costs one does so each time.
	lab.Eventually(t, lab.Patience, "checks leave the agent alone in the fleet and fresh, without a resync", func() bool {
		before, deliveries := s.fleet.Get(runtime, manager), s.deliveries.Load()
		for range 3 {
			if out, code := lab.Check(t, env); code != 0 || !strings.Contains(out, "ok    webhook") {
				t.Logf("exit code %d, want 0 and that the API server calls the agent:\n%s", code, out)
				return false
			}
		}
		awaitHeartbeats(2)
		after := s.fleet.Get(runtime, manager)
		return len(after.Replicas) == 1 && after.Replicas[0].Epoch == before.Replicas[0].Epoch &&
			after.State == fleet.Fresh && after.Since.Equal(before.Since) && s.deliveries.Load() == deliveries
	})
	env["METRICS_PORT"] = strconv.Itoa(agent.MetricsPort)
	s.checkFindsFault(env, func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error {
		for n := range stored.Webhooks {
			stored.Webhooks[n].ClientConfig.CABundle = lab.NewPKI(t).CA.PEM
		}
		return s.runtime.Client.Update(t.Context(), stored)
	}, `FAIL  webhook +the API server rejects the certificate of the agent; want a caBundle`)
	s.checkFindsFault(env, func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error {
		stored.Webhooks = nil
		return s.runtime.Client.Update(t.Context(), stored)
	}, `FAIL  webhook +the API server calls no agent, and one runs here; want a call; apply the webhook configuration`)

	// With the right to read the configuration, the check tells a missing webhook from a closed port.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: canary.Lease.Name}}
	lab.Change(t, s.runtime.Client, role, func(role *rbacv1.ClusterRole) error {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingwebhookconfigurations"},
			ResourceNames: []string{"check"}, Verbs: []string{"get"},
		})
		return s.runtime.Client.Update(t.Context(), role)
	})
	env["WEBHOOK_CONFIGURATION"] = "check"
	s.checkFindsFault(env, func(*admissionregistrationv1.ValidatingWebhookConfiguration) error { return nil },
		`FAIL  webhook +the API server calls no agent, and one runs here: the webhook configuration check has no webhooks; want a call`)
	s.checkFindsFault(env, func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error {
		return s.runtime.Client.Delete(t.Context(), stored)
	}, `FAIL  webhook +the API server calls no agent, and one runs here: the webhook configuration check is missing; want a call`)
}

// checkFindsFault breaks the webhook configuration. A check beside an agent must fail with the cause.
func (s *scene) checkFindsFault(env env, inject func(stored *admissionregistrationv1.ValidatingWebhookConfiguration) error, line string) {
	s.t.Helper()
	var stored admissionregistrationv1.ValidatingWebhookConfiguration
	err := s.runtime.Client.Get(s.t.Context(), client.ObjectKey{Name: "check"}, &stored)
	lab.NoError(s.t, errors.Join(err, inject(&stored)))
	lab.Eventually(s.t, lab.Patience, "the check fails with "+line, func() bool {
		out, code := lab.Check(s.t, env)
		return code == 1 && regexp.MustCompile(`^`+line).MatchString(lab.Telling(out, code))
	})
}

// checkBefore checks without an agent, as an init container does.
func (s *scene) checkBefore(canary *lab.Canary, env map[string]string) {
	s.t.Helper()
	lease := func() string {
		found := &coordinationv1.Lease{}
		lab.NoError(s.t, s.runtime.Client.Get(s.t.Context(), canary.Lease, found))
		return found.ResourceVersion
	}
	before := lease()
	awaitOperator(s.t, env)
	if out, code := lab.Check(s.t, env); code != 0 || !strings.Contains(out, "warn  webhook") {
		s.t.Fatalf("exit code %d, want 0 and a warning that no agent is called:\n%s", code, out)
	}
	if state := s.fleet.Get(runtime, manager).State; state != fleet.Unknown {
		s.t.Errorf("after a check without agent the runtime is %s, want unknown", state)
	}
	if after := lease(); after != before {
		s.t.Errorf("resource version of the Lease %s, want %s: a check changes nothing", after, before)
	}
}
