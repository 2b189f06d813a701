package paths_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const manager = core.Manager("lifecycle-manager")

// ends is an operator's listener, and forwarders of different runtimes to it.
type ends struct {
	runtimes []core.Forwarder
	// handled counts the events that the operator got.
	handled atomic.Int64
}

// newEnds starts a listener with native mTLS, and a forwarder with a certificate of its own for each
// runtime.
func newEnds(b *testing.B, verifier core.Verifier, protocol string, runtimes int) *ends {
	b.Helper()
	ca := lab.Must(testpki.NewCA("ca", testpki.Options{}))
	address, e := listen(b, ca, verifier)
	for i := range runtimes {
		leaf := lab.Must(ca.Client(runtimeName(i), testpki.Options{DNSNames: []string{domainOf(i)}}))
		forwarder := lab.Must(httpmtls.NewForwarder(kit.Material(leaf, ca), address, contract.V3,
			httpmtls.Options{Protocol: protocol}))
		b.Cleanup(func() { _ = forwarder.Close() })
		e.runtimes = append(e.runtimes, forwarder)
	}
	return e
}

// listen starts the listener, and returns its address.
func listen(b *testing.B, ca *testpki.CA, verifier core.Verifier) (string, *ends) {
	b.Helper()
	e := &ends{}
	material := kit.Material(lab.Must(ca.Server("kcp", testpki.Options{})), ca)
	socket := lab.Must(net.Listen("tcp", "127.0.0.1:0"))
	events := lab.Must(listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}), verifier,
		map[core.Manager]core.Handler{manager: core.HandlerFunc(e.handle)},
		// The shares of a runtime are larger than the load.
		listener.Options{
			Listener: socket, TLS: keys.ServerTLSConfig(material),
			RuntimeRate: 1e9, RuntimeBurst: 1e9, RuntimeInFlight: 1e6, MaxInFlight: 1e4,
		}))
	lab.Run(b, "listener", events.Start)
	return socket.Addr().String(), e
}

func (e *ends) handle(context.Context, core.Delivery) error {
	e.handled.Add(1)
	return nil
}

// newBatch returns a batch as an outbox makes it: with an epoch, numbers and IDs.
func newBatch(events int) core.Batch {
	batch := core.Batch{Epoch: "K3ZQVV5XW4WZB5NQ3V7DGR2BXA", Events: make([]core.Numbered, events)}
	for i := range batch.Events {
		batch.Events[i] = core.Numbered{
			Sequence: uint64(i + 1), ID: fmt.Sprintf("%s-%d", batch.Epoch, i+1),
			WatchEvent: core.WatchEvent{
				Watched:    types.NamespacedName{Namespace: "kyma-system", Name: fmt.Sprintf("manifest-%d", i)},
				WatchedGVK: schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Manifest"},
				Operation:  core.OperationUpdate, Field: core.FieldSpec, Generation: 7, Time: someTime,
			},
		}
	}
	return batch
}
