package multicluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	clusters = flag.String("clusters", "0,10,100,1000", "numbers of clusters")
	objects  = flag.Int("objects", 100, "number of ConfigMaps of each cluster")
	size     = flag.Int("size", 2048, "bytes of each ConfigMap")
	writes   = flag.Int("writes", 500, "number of writes")
	rate     = flag.Int("rate", 50, "writes in a second, over all clusters")
)

const (
	manager = core.Manager("configmaps")
	// patience bounds each wait.
	patience = 30 * time.Minute
	// operatorSettings is the variable of the environment that makes this program an operator.
	operatorSettings = "MULTICLUSTER_OPERATOR"
)

func TestMain(m *testing.M) {
	text, isOperator := os.LookupEnv(operatorSettings)
	if !isOperator {
		os.Exit(m.Run())
	}
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	if err := s.serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestClustersWithoutCaches prints the table of docs/maintainers/measurements.md.
func TestClustersWithoutCaches(t *testing.T) {
	t.Logf("%d objects of %d bytes in each cluster, %d writes, %d in a second", *objects, *size, *writes, *rate)
	for text := range strings.SplitSeq(*clusters, ",") {
		n := must(strconv.Atoi(text))
		cached, watched := run(t, n, false), run(t, n, true)
		t.Log(cached)
		t.Log(watched)
		if n >= 100 && watched.memory >= cached.memory {
			t.Errorf("%d clusters: %d bytes without caches, want less than the %d with them", n, watched.memory, cached.memory)
		}
	}
}

type result struct {
	name                 string
	clusters             int
	memory               int64
	connections, watches int64
	atStart, requests    int64
	delays               []time.Duration
}

func (r *result) String() string {
	p50, p99 := time.Duration(0), time.Duration(0)
	if len(r.delays) > 0 {
		p50, p99 = r.delays[len(r.delays)/2], r.delays[len(r.delays)*99/100]
	}
	return fmt.Sprintf("%4d clusters | %-14s | memory %7.1f MiB | connections %4d | watches %4d | requests at the start %6d, "+
		"for %d writes %5d | staleness p50 %v p99 %v", r.clusters, r.name, float64(r.memory)/(1<<20), r.connections, r.watches,
		r.atStart, len(r.delays), r.requests, p50.Round(time.Millisecond), p99.Round(time.Millisecond))
}

func run(t *testing.T, n int, watched bool) (r *result) {
	t.Helper()
	r = &result{name: "caches", clusters: n}
	if watched {
		r.name = "without caches"
	}
	t.Run(fmt.Sprintf("%d clusters, %s", n, r.name), func(t *testing.T) {
		ca := must(testpki.NewCA("ca", testpki.Options{}))
		servers := startServers(t, ca, n)
		s := settings{Keys: writeKeys(t, ca), Server: servers.URL + "/" + controlPlane}
		changed := func(int, int, int) {}
		if watched {
			s.Addr = lab.Address(lab.FreePort(t))
			changed = startAgents(t, ca, s.Addr, n)
		}
		r.measure(t, servers, startOperator(t, s), changed)
	})
	return r
}

// measure writes after each object was reconciled once.
func (r *result) measure(t *testing.T, servers *apiServers, p *process, changed func(cluster, object, base int)) {
	t.Helper()
	lab.Eventually(t, patience, "all objects were reconciled", func() bool {
		<-time.After(time.Second)
		return p.seen(t).Reconciles >= r.clusters**objects
	})
	r.atStart = servers.requests.Load()
	if r.clusters > 0 {
		r.write(t, servers, p, changed)
	}
	r.requests = servers.requests.Load() - r.atStart
	r.memory, r.connections, r.watches = p.seen(t).Memory, servers.connections.Load(), servers.watches.Load()
}

// write writes at a steady rate, each object at most once while another write of it is not seen.
func (r *result) write(t *testing.T, servers *apiServers, p *process, changed func(cluster, object, base int)) {
	t.Helper()
	pace := time.NewTicker(time.Second / time.Duration(*rate))
	defer pace.Stop()
	distinct := make(map[[2]int]bool)
	for len(distinct) < min(*writes, r.clusters**objects) {
		at := [2]int{rand.IntN(r.clusters), rand.IntN(*objects)}
		if distinct[at] {
			continue
		}
		distinct[at] = true
		<-pace.C
		changed(at[0], at[1], servers.write(at[0], at[1]))
	}
	lab.Eventually(t, patience, "all writes were reconciled", func() bool {
		<-time.After(time.Second)
		r.delays = p.seen(t).Delays
		return len(r.delays) >= len(distinct)
	})
	slices.Sort(r.delays)
}

// startAgents starts, for each cluster, the parts of an agent behind its webhook. It returns a
// function that offers a write to one of them.
func startAgents(t *testing.T, ca *testpki.CA, address string, n int) (changed func(cluster, object, base int)) {
	t.Helper()
	outboxes := make([]*outbox.Outbox, n)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for i := range outboxes {
		leaf := must(ca.Client(clusterName(i), testpki.Options{DNSNames: []string{clusterName(i) + ".example.com"}}))
		material := must(keys.NewMaterial(ca.PEM(), leaf.CertPEM(), must(leaf.KeyPEM())))
		forwarder := must(httpmtls.NewForwarder(material, address, contract.V3, httpmtls.Options{}))
		opts := outbox.Defaults()
		opts.Epoch, opts.ResyncFirst, opts.Managers = clusterName(i), false, []core.Manager{manager}
		opts.MaxBatch, opts.InFlight, opts.DrainTimeout = contract.V3.MaxEvents(), 1, -1
		outboxes[i] = must(outbox.New(forwarder, opts))
		all.Go(func() {
			_ = outboxes[i].Start(t.Context()) // It ends with the test.
			_ = forwarder.Close()
		})
	}
	return func(cluster, object, base int) {
		outboxes[cluster].Accept(manager, core.WatchEvent{
			Watched:    types.NamespacedName{Namespace: "default", Name: objectName(object)},
			WatchedGVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Operation: core.OperationUpdate, Time: time.Now(),
			UID: types.UID(objectName(object)), Base: int64(base),
		})
	}
}

// process is an operator in a process of its own.
type process struct {
	in  io.Writer
	out *bufio.Reader
}

func startOperator(t *testing.T, s settings) *process {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), operatorSettings+"="+string(must(json.Marshal(s))))
	command.Stderr = os.Stderr
	in, out := must(command.StdinPipe()), must(command.StdoutPipe())
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	return &process{in: in, out: bufio.NewReader(out)}
}

// seen returns the state of the operator.
func (p *process) seen(t *testing.T) (s seen) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		t.Fatal(err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the operator has ended: %v", err)
	}
	if err := json.Unmarshal(line, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// writeKeys writes the key material of the listener.
func writeKeys(t *testing.T, ca *testpki.CA) string {
	t.Helper()
	folder := t.TempDir()
	leaf := must(ca.Server("operator", testpki.Options{}))
	for name, text := range map[string][]byte{
		"ca.crt": ca.PEM(), "tls.crt": leaf.CertPEM(), "tls.key": must(leaf.KeyPEM()),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
