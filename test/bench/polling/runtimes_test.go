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

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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
}

// apiServer has the state of one runtime.
type apiServer struct {
	mu      sync.Mutex
	version int64
	// unseen are the times of the changes since the last look.
	unseen []time.Time
	// looks counts the looks, and delays are the times from each change to the look that saw it.
	looks  int
	delays []time.Duration
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
		Certificates: []tls.Certificate{must(ca.Server("kubernetes", testpki.Options{})).TLS()},
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
		`"name":"default","uid":%q,"resourceVersion":"%d"},"spec":{"modules":[%s{}]}}`, uid, s.runtimes[i].look(), s.spec)
}

// uid is that of the object of each runtime.
const uid = "aa1d8e0b-6b7e-4a3c-9a53-6a3e2b1f0c9d"

// look returns the version, and notes how long its changes waited.
func (a *apiServer) look() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.unseen {
		a.delays = append(a.delays, time.Since(at))
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

// startAgents starts, for each runtime, the parts of an agent behind its webhook. It returns a
// function that offers a change to one of them.
func startAgents(
	t *testing.T, ca *testpki.CA, address string, clock clock, runtimes int,
) (changed func(i int, base int64)) {
	t.Helper()
	outboxes := make([]*outbox.Outbox, runtimes)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for i := range outboxes {
		leaf := must(ca.Client(runtimeName(i), testpki.Options{DNSNames: []string{domainOf(runtimeName(i))}}))
		material := must(keys.NewMaterial(ca.PEM(), leaf.CertPEM(), must(leaf.KeyPEM())))
		forwarder := must(httpmtls.NewForwarder(material, address, contract.V3, httpmtls.Options{Protocol: httpmtls.Protocol(*protocol)}))
		outboxes[i] = must(outbox.New(forwarder, clock.outbox(runtimeName(i))))
		all.Go(func() {
			_ = outboxes[i].Start(t.Context()) // It ends with the test.
			_ = forwarder.Close()
		})
	}
	return func(i int, base int64) {
		outboxes[i].Accept(manager, core.WatchEvent{
			Watched:    types.NamespacedName{Namespace: "kyma-system", Name: "default"},
			WatchedGVK: kymaKind(), Operation: core.OperationUpdate, Time: time.Now(), UID: uid, Base: base,
		})
	}
}

// outbox returns the defaults of an agent, with scaled waits.
func (c clock) outbox(epoch string) outbox.Options {
	resend := outbox.Defaults().Resend
	for i := range resend {
		resend[i] = c.scaled(resend[i])
	}
	return outbox.Options{
		Epoch: epoch, ResyncFirst: true, Managers: []core.Manager{manager}, MaxBatch: contract.V3.MaxEvents(),
		Settle: c.scaled(outbox.Defaults().Settle), Resend: resend, ResendResync: c.scaled(outbox.Defaults().ResendResync),
		HeartbeatInterval: c.scaled(outbox.Defaults().HeartbeatInterval), DrainTimeout: -1,
	}
}
