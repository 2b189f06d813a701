package polling_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// apiServers answer a get of the one object of each runtime, as an API server does. They are one
// server of HTTPS with a path for each runtime.
type apiServers struct {
	*httptest.Server

	runtimes []apiServer
	// gets counts the requests of the operator.
	gets atomic.Int64
	// spec makes the object as large as those of a fleet.
	spec string
	// delays are the times from each change to the look that saw it.
	delays kit.Samples
}

// apiServer has the state of one runtime.
type apiServer struct {
	mu      sync.Mutex
	version int64
	// unseen are the times of the changes since the last look.
	unseen []time.Time
	looks  int
}

func startAPIServers(t *testing.T, ca *testpki.CA, runtimes int) *apiServers {
	t.Helper()
	s := &apiServers{runtimes: make([]apiServer, runtimes), spec: strings.Repeat(`{"name":"module","channel":"regular"},`, 50)}
	for i := range s.runtimes {
		s.runtimes[i].version = 1
	}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{lab.Must(ca.Server("kubernetes", testpki.Options{})).TLS},
		ClientCAs:    ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP answers a get.
func (s *apiServers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"+runtimePrefix), "/")
	i, err := strconv.Atoi(name)
	if err != nil || i >= len(s.runtimes) {
		http.NotFound(w, r)
		return
	}
	s.gets.Add(1)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"apiVersion":"operator.kyma-project.io/v1beta2","kind":"Kyma","metadata":{"namespace":"kyma-system",`+
		`"name":"default","uid":%q,"resourceVersion":"%d"},"spec":{"modules":[%s{}]}}`, uid, s.runtimes[i].look(&s.delays), s.spec)
}

// uid is that of the object of each runtime.
const uid = "aa1d8e0b-6b7e-4a3c-9a53-6a3e2b1f0c9d"

// look returns the version, and notes how long its changes waited.
func (a *apiServer) look(delays *kit.Samples) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.unseen {
		delays.Add(time.Since(at))
	}
	a.unseen = nil
	a.looks++
	return a.version
}

// change returns the version before the change.
func (a *apiServer) change() (base int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	base = a.version
	a.version++
	a.unseen = append(a.unseen, time.Now())
	return base
}

// all reports whether each runtime meets a condition.
func (s *apiServers) all(met func(*apiServer) bool) bool {
	for i := range s.runtimes {
		a := &s.runtimes[i]
		a.mu.Lock()
		ok := met(a)
		a.mu.Unlock()
		if !ok {
			return false
		}
	}
	return true
}

// change changes runtimes at random, each once in an hour on average, until ctx ends. changed is
// called after each change.
func (s *apiServers) change(ctx context.Context, clock clock, changed func(i int, base int64)) {
	mean := clock.scaled(time.Hour) / time.Duration(len(s.runtimes))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rand.ExpFloat64() * float64(mean))):
			i := rand.IntN(len(s.runtimes))
			changed(i, s.runtimes[i].change())
		}
	}
}

// startAgents starts an agent for each runtime. It returns a function that offers a change to one of
// them.
func startAgents(
	t *testing.T, pki *lab.PKI, address string, clock clock, heartbeat time.Duration,
) (changed func(i int, base int64)) {
	t.Helper()
	agents := make([]*kit.Agent, *runtimes)
	for i := range agents {
		id := core.RuntimeID(runtimeName(i))
		leaf := lab.Must(pki.CA.Client(runtimeName(i), testpki.Options{DNSNames: []string{lab.RuntimeDomain(id)}}))
		agents[i] = lab.Must(kit.StartAgent(context.Background(), manager, agentlib.Parts{ClientKeys: kit.Material(leaf, pki.CA)},
			agentlib.Options{
				ControlPlane: agentlib.ControlPlane{Address: address, Protocol: *protocol},
				Outbox:       clock.outbox(heartbeat),
			}))
		t.Cleanup(agents[i].Kill)
	}
	return func(i int, base int64) {
		agents[i].Change(core.WatchEvent{
			Watched:    types.NamespacedName{Namespace: "kyma-system", Name: "default"},
			WatchedGVK: kymaKind(), Operation: core.OperationUpdate, Time: time.Now(), UID: uid, Base: base,
		})
	}
}

// outbox returns the defaults of an agent, with scaled waits.
func (c clock) outbox(heartbeat time.Duration) outbox.Options {
	resend := outbox.Defaults().Resend
	for i := range resend {
		resend[i] = c.scaled(resend[i])
	}
	return outbox.Options{
		Settle: c.scaled(outbox.Defaults().Settle), Resend: resend, ResendResync: c.scaled(outbox.Defaults().ResendResync),
		HeartbeatInterval: c.scaled(heartbeat),
	}
}
