// Package idle measures the memory that a runtime costs a listener while the runtime only sends
// heartbeats.
package idle

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	manager = core.Manager("kyma")

	listenerRole = "listener"
	// atOnce is the number of runtimes that connect at the same time.
	atOnce = 16
	// parked is a time after which an idle connection is parked.
	parked = 500 * time.Millisecond
	// profileVariable has the name of the file for the profile.
	profileVariable = "IDLE_HEAP"
)

var (
	runtimes = flag.Int("runtimes", 500, "number of runtimes")
	beats    = flag.Int("beats", 3, "heartbeats of each runtime")
	profile  = flag.String("heap", "", "file for a heap profile of the listener")
)

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{listenerRole: serve}))
}

// settings are the key material of the listener, in PEM.
type settings struct{ Certificate, Key, CA string }

// use is the memory of the listener in bytes, after two collections and, if resident, before them, and
// the number of known runtimes.
type use struct{ Heap, Stacks, Resident, Known int64 }

// serve is a listener with a fleet.
func serve(ctx context.Context) error {
	s := kit.Settings[settings]()
	pair, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(s.CA))
	known, err := fleet.New(fleet.Options{})
	if err != nil {
		return err
	}
	ready, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}

	ignore := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
	peers := listener.FromTLS(func() *x509.CertPool { return roots }, listener.PeerOptions{})
	handlers := map[core.Manager]core.Handler{manager: ignore}
	l, err := listener.New(peers, listener.InsecureAllowAll(), handlers, listener.Options{
		Listener: ready, Fleet: known, Logger: slog.New(slog.DiscardHandler),
		TLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert,
		},
	})
	if err != nil {
		return err
	}
	go func() { _ = l.Start(ctx) }() // The process is killed.
	fmt.Println(ready.Addr())

	return kit.Answer(func(question string) any {
		if question == "profile" {
			return writeProfile()
		}
		resident, _ := kit.UsageOf(os.Getpid())
		runtime.GC()
		debug.FreeOSMemory() // Collects once more.
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		count := int64(0)
		for range known.Range {
			count++
		}
		return use{int64(memory.HeapAlloc), int64(memory.StackInuse), resident.Resident, count}
	})
}

func writeProfile() string {
	file, err := os.Create(os.Getenv(profileVariable))
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	return fmt.Sprint(pprof.WriteHeapProfile(file))
}

// TestMemoryOfARuntime connects runtimes, of which each sends heartbeats over its connection. It bounds
// the live memory. The resident memory is about twice that, because of the default of GOGC.
func TestMemoryOfARuntime(t *testing.T) {
	const mostHeap, mostStacks = 15 << 10, 5 << 10
	pki := lab.NewPKI(t)
	leaf := lab.Must(pki.CA.Server("operator", testpki.Options{}))
	material := settings{string(leaf.CertPEM), string(leaf.KeyPEM), string(pki.CA.PEM)}
	server := kit.Start(t, listenerRole, material, profileVariable+"="+*profile)
	address := server.Line()

	newSender(t, pki, address, *runtimes).beat()
	var before, after use
	server.Ask("use", &before)
	all := make([]*sender, *runtimes)
	workqueue.ParallelizeUntil(t.Context(), atOnce, len(all), func(i int) {
		all[i] = newSender(t, pki, address, i)
		all[i].beat()
	})
	for range *beats - 1 {
		<-time.After(parked)
		workqueue.ParallelizeUntil(t.Context(), atOnce, len(all), func(i int) { all[i].beat() })
	}

	var resident use
	server.Ask("use", &resident)
	each := func(before, after int64) int64 { return (after - before) / int64(len(all)) }
	lab.Eventually(t, time.Minute, "a runtime costs little memory", func() bool {
		server.Ask("use", &after)
		heap := each(before.Heap, after.Heap)
		stacks := each(before.Stacks, after.Stacks)
		return heap <= mostHeap && stacks <= mostStacks // Connections need some time until they are parked.
	})
	t.Logf("bytes for each of %d runtimes: heap %d, stacks %d, resident before a collection %d", len(all),
		each(before.Heap, after.Heap), each(before.Stacks, after.Stacks), each(before.Resident, resident.Resident))
	if after.Known != int64(len(all))+1 {
		t.Errorf("the fleet knows %d runtimes, want %d", after.Known, len(all)+1)
	}
	if *profile != "" {
		var answer string
		server.Ask("profile", &answer)
		t.Log(answer)
	}
}

// sender is a runtime with one connection.
type sender struct {
	t      *testing.T
	name   core.RuntimeID
	conn   *tls.Conn
	reader *bufio.Reader
	leaf   *testpki.Leaf
	number uint64
}

func newSender(t *testing.T, pki *lab.PKI, address string, number int) *sender {
	t.Helper()
	name := kit.RuntimeName(number)
	s := &sender{t: t, name: core.RuntimeID(name), leaf: lab.Must(pki.CA.Client(name, testpki.Options{}))}
	host, _, err := net.SplitHostPort(address)
	lab.NoError(t, err)
	s.conn = tls.Client(lab.Must(new(net.Dialer).DialContext(t.Context(), "tcp", address)), &tls.Config{
		RootCAs: pki.CA.Pool(), ServerName: host, MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{lab.Must(tls.X509KeyPair(s.leaf.CertPEM, s.leaf.KeyPEM))},
	})
	t.Cleanup(func() { _ = s.conn.Close() })
	lab.NoError(t, s.conn.HandshakeContext(t.Context()))
	s.reader = bufio.NewReaderSize(s.conn, 1<<10)
	return s
}

// beat sends a heartbeat as an agent does, and reads the answer.
func (s *sender) beat() {
	s.number++
	batch := contract.Claim(core.Batch{Epoch: "0123456789abcdef0123456789abcdef" + string(s.name), Heartbeat: &core.Heartbeat{
		ID: fmt.Sprint(s.name, s.number), Time: time.Now(), Number: s.number, Interval: 30 * time.Second,
		Instance: "runtime-watcher-agent-0", Version: "v0.0.0-lab", ConfigHash: "6b86b273ff34fce1", Canary: core.CanaryAlive,
		LastReview: time.Now(), CertificateFingerprint: fmt.Sprintf("%064x", s.number), CertificateExpiry: time.Now().Add(time.Hour),
		CAFingerprints: []string{fmt.Sprintf("%064x", 1)},
	}}, s.name)
	encoded, err := contract.V3.Encode(&batch)
	lab.NoError(s.t, err)
	url := "https://operator" + contract.V3.Path(manager)
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, url, bytes.NewReader(encoded.Body))
	lab.NoError(s.t, err)
	request.Header.Set("Content-Type", contract.V3.ContentType())
	lab.NoError(s.t, request.Write(s.conn))
	answer, err := http.ReadResponse(s.reader, request)
	lab.NoError(s.t, err)
	_ = answer.Body.Close() // It is empty.
	if answer.StatusCode != http.StatusAccepted {
		s.t.Errorf("answer %s", answer.Status)
	}
}
