package loss

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// rotates is how long each form of the test takes. `make rotation` asks for more.
var rotates = flag.Duration("rotation", 0, "how long certificates rotate, in each form of TestRotation")

// TestRotation rotates every leaf and the CA, at all ends, while objects are written. Every call of the webhook is
// answered, every object is reconciled after its last commit, and no process restarts.
func TestRotation(t *testing.T) {
	t.Parallel()
	plane, pki := newWorld(t)
	for name, way := range map[string]way{"natively": "", "through-nginx": active} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It waits for ends that read their files again.
			with := setup{name: name, source: sourceAdmission, transport: transportHTTP, way: way}
			s := whileWriting(t, plane, pki, with, func(s *scene, _ *lab.Ledger) {
				processes := s.processes()
				for n, until := 0, time.Now().Add(*rotates); n == 0 || time.Now().Before(until); n++ {
					s.rotate((way == "") == (n%2 == 0))
				}
				if now := s.processes(); !slices.Equal(now, processes) {
					t.Errorf("the processes %v became %v", processes, now)
				}
			})
			if n := s.senders[0].agent.Metric("runtime_watcher_agent_events_dropped_total"); n > 0 {
				t.Errorf("%v events were dropped, want all delivered", n)
			}
			t.Logf("%d rotations", len(s.cas)-2)
		})
	}
}

// processes returns the numbers of the agent, the operators and the gateway.
func (s *scene) processes() (pids []int) {
	for _, one := range s.operators {
		pids = append(pids, one.Pid())
	}
	if s.gateway != nil {
		pids = append(pids, s.gateway.Pid())
	}
	return append(pids, s.senders[0].Pid())
}

// rotate replaces the CA. All ends trust the next one, then each gets a leaf of it, the agent first or last, and then
// no end trusts the former one.
func (s *scene) rotate(agentFirst bool) {
	s.t.Helper()
	if len(s.cas) == 1 {
		s.announce()
	}
	old := s.cas[len(s.cas)-2]
	next := s.cas[len(s.cas)-1]
	s.write(s.secrets, old, old, next)
	// The API server learns the CA of the next rotation, as nothing shows when it does.
	s.announce()
	agents := slices.Clone(s.secrets)
	others := slices.Clone(s.secrets)
	agents = slices.DeleteFunc(agents, func(one *secret) bool { return !one.ofAgent })
	others = slices.DeleteFunc(others, func(one *secret) bool { return one.ofAgent })
	if !agentFirst {
		agents, others = others, agents
	}
	s.write(agents, next, old, next)
	s.write(others, next, old, next)
	s.write(s.secrets, next, next)
}

// announce makes another CA, which the API server trusts before an agent shows its leaf.
func (s *scene) announce() {
	s.t.Helper()
	s.cas = append(s.cas, lab.Must(testpki.NewCA(fmt.Sprint("ca-", len(s.cas)), testpki.Options{})))
	configuration := s.newConfiguration()
	lab.NoError(s.t, s.plane.Client.Get(s.t.Context(), client.ObjectKeyFromObject(configuration), configuration))
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig.CABundle = testpki.Bundle(s.cas...)
	}
	lab.NoError(s.t, s.plane.Client.Update(s.t.Context(), configuration))
}

// write gives ends new leaves and a bundle, and returns when they are in use.
func (s *scene) write(to []*secret, issuer *testpki.CA, trusts ...*testpki.CA) {
	s.t.Helper()
	for _, one := range to {
		one.write(issuer, trusts...)
	}
	if s.gateway != nil {
		s.gateway.Reload()
	}
	for _, one := range to {
		if one.ofAgent {
			fingerprint := fmt.Sprintf("%x", sha256.Sum256(one.leaf.TLS.Leaf.Raw))
			lab.Eventually(s.t, patience, "the agent uses its new certificate", func() bool {
				text, err := lab.Get(s.t.Context(), "http://"+lab.Address(s.senders[0].agent.MetricsPort)+"/readyz")
				return err == nil && strings.Contains(string(text), fingerprint) && !strings.Contains(string(text), `"problem"`)
			})
		} else if one.shownAt != "" {
			lab.AwaitCertificate(s.t, one.shownAt, one.leaf)
		}
	}
}

// secret is key material in files, as one end mounts it.
type secret struct {
	*testpki.Volume

	issue   func(*testpki.CA) (*testpki.Leaf, error)
	leaf    *testpki.Leaf
	ofAgent bool
	// shownAt is the address of a server with the leaf.
	shownAt string
}

func (s *scene) newSecret(ofAgent bool, shownAt string, issue func(*testpki.CA) (*testpki.Leaf, error)) *testpki.Volume {
	s.t.Helper()
	one := &secret{Volume: testpki.NewVolume(s.t.TempDir()), issue: issue, ofAgent: ofAgent, shownAt: shownAt}
	one.write(s.pki.CA, s.pki.CA)
	s.secrets = append(s.secrets, one)
	return one.Volume
}

func (s *secret) write(issuer *testpki.CA, trusts ...*testpki.CA) {
	s.leaf = lab.Must(s.issue(issuer))
	if err := s.Write(testpki.Files(s.leaf, trusts...)); err != nil {
		panic(err)
	}
}

func issueServer(ca *testpki.CA) (*testpki.Leaf, error) {
	return ca.Server("listener", testpki.Options{})
}
