package kit

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// Load is the shape of a benchmark: each runtime has one call of Forward at a time, with that many
// events.
type Load struct{ Runtimes, Events int }

// String is a part of the name of a benchmark.
func (l Load) String() string { return fmt.Sprintf("events=%d/runtimes=%d", l.Events, l.Runtimes) }

// Counter is an operator that counts its events.
type Counter struct{ Handled atomic.Int64 }

// Handle implements [core.Handler].
func (c *Counter) Handle(context.Context, core.Delivery) error {
	c.Handled.Add(1)
	return nil
}

// Listen starts a listener with native mTLS, or one behind nginx, and returns a forwarder with a
// certificate of its own for each runtime.
func Listen(
	t testing.TB, manager core.Manager, operator core.Handler, verifier core.Verifier, runtimes int, gateway bool, protocol string,
	opts listener.Options,
) (forwarders []core.Forwarder) {
	t.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	leaf := lab.Must(ca.Server("operator", testpki.Options{}))
	server := Material(leaf, ca)
	opts.Listener = lab.Must(net.Listen("tcp", "127.0.0.1:0"))
	address, peers := opts.Listener.Addr().String(), listener.FromTLSWithRoots(keys.Roots(server), listener.PeerOptions{})
	if gateway {
		volume, nginx := testpki.NewVolume(t.TempDir()), lab.GatewayOptions{Upstream: address}
		lab.NoError(t, volume.Write(testpki.Files(leaf, ca)))
		nginx.ClientCA, nginx.Certificate, nginx.Key = volume.Paths()
		address = lab.StartGateway(t, nginx).Addr
		peers = listener.FromXFCC(listener.ProxyAddresses(netip.MustParsePrefix("127.0.0.1/32")), keys.Roots(server), listener.PeerOptions{})
	} else {
		opts.TLS = keys.ServerTLSConfig(server)
	}
	l := lab.Must(listener.New(peers, verifier, map[core.Manager]core.Handler{manager: operator}, opts))
	lab.Run(t, "listener", l.Start)
	for n := range runtimes {
		id := core.RuntimeID(RuntimeName(n))
		leaf := lab.Must(ca.Client(string(id), testpki.Options{DNSNames: []string{lab.RuntimeDomain(id)}}))
		f := lab.Must(httpmtls.NewForwarder(Material(leaf, ca), address, contract.V3, httpmtls.Options{Protocol: protocol}))
		t.Cleanup(func() { _ = f.Close() })
		forwarders = append(forwarders, f)
	}
	return forwarders
}

// Plenty are shares of a runtime that are larger than any load.
func Plenty() listener.Options {
	return listener.Options{RuntimeRate: 1e9, RuntimeBurst: 1e9, RuntimeInFlight: 1e6, MaxInFlight: 1e4}
}

// Calls are the calls of Forward of several runtimes.
type Calls struct {
	Manager    core.Manager
	Operator   *Counter
	Forwarders []core.Forwarder
	Batch      core.Batch
}

// Run makes n calls, and returns when the operator got all events.
func (c *Calls) Run(b *testing.B, n int) {
	b.Helper()
	want := c.Operator.Handled.Load() + int64(n*len(c.Batch.Events))
	var (
		left atomic.Int64
		all  sync.WaitGroup
	)
	left.Store(int64(n))
	for _, forwarder := range c.Forwarders {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := forwarder.Forward(b.Context(), c.Manager, c.Batch); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	lab.Eventually(b, time.Minute, "the operator got all events", func() bool { return c.Operator.Handled.Load() >= want })
}

// Cost is the time that some work took, and the processor time of the whole process.
type Cost struct{ Wall, Processor time.Duration }

// Measure adds the cost of some work.
func (c *Cost) Measure(work func()) {
	started, before := time.Now(), ProcessorTime()
	work()
	c.Wall += time.Since(started)
	c.Processor += ProcessorTime() - before
}

// Report adds the events per second, and the processor time of both ends for each event.
func (c *Cost) Report(b *testing.B, events int) {
	b.Helper()
	b.ReportMetric(float64(events)/c.Wall.Seconds(), "events/s")
	b.ReportMetric(float64(c.Processor.Microseconds())/float64(events), "cpu-µs/event")
}

// ProcessorTime is that of this process.
func ProcessorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
