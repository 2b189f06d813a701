// Package paths measures events from the forwarder of an agent to the listener of an operator, with
// TLS and loopback, in one process. See docs/maintainers/measurements.md.
package paths_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
)

var someTime = time.Date(2026, 11, 22, 3, 4, 5, 678_901_234, time.UTC)

const manager = core.Manager("lifecycle-manager")

// The loads of the goals: batches, and calls with a single event.
var (
	batches  = kit.Load{Runtimes: 4, Events: 300}
	singles  = kit.Load{Runtimes: 16, Events: 1}
	oneByOne = kit.Load{Runtimes: 1, Events: 1}
)

var protocols = []string{"h2", "http/1.1"}

// BenchmarkV3 sends events of contract v3 over native mTLS, with SAN pinning against a cache of
// 10,000 objects. One operation is one call of Forward. Allocations are those of both ends. Rounds
// alternate with those of twins that carry the same bytes: "bare" and "lean" are the ratios of the
// processor times (see [newTwin]).
func BenchmarkV3(b *testing.B) {
	pinned := listener.SANPinning(newRuntimes(b))
	for _, load := range []kit.Load{batches, singles, oneByOne} {
		for _, protocol := range protocols {
			b.Run(fmt.Sprintf("%s/%s", load, protocol), func(b *testing.B) {
				calls := overHTTP(b, pinned, protocol, load)
				bareTwin, leanTwin := newTwin(b, nil, protocol, load), newTwin(b, pinned, protocol, load)
				b.ReportAllocs()
				b.ResetTimer()
				var all, bare, lean kit.Cost
				for left := b.N; left > 0; left -= calls.round() {
					n := min(left, calls.round())
					all.Measure(func() { calls.Run(b, n) })
					b.StopTimer()
					bare.Measure(func() { bareTwin.Run(b, n) })
					lean.Measure(func() { leanTwin.Run(b, n) })
					b.StartTimer()
				}
				b.StopTimer()
				all.Report(b, b.N*load.Events)
				b.ReportMetric(all.Processor.Seconds()/bare.Processor.Seconds(), "bare")
				b.ReportMetric(all.Processor.Seconds()/lean.Processor.Seconds(), "lean")
			})
		}
	}
}

// calls are those of a load.
type calls struct {
	kit.Calls

	load kit.Load
}

// newCalls also connects all runtimes.
func newCalls(b *testing.B, operator *kit.Counter, forwarders []core.Forwarder, l kit.Load) *calls {
	b.Helper()
	c := &calls{kit.Calls{Manager: manager, Operator: operator, Forwarders: forwarders, Batch: newBatch(l.Events)}, l}
	c.Run(b, l.Runtimes)
	return c
}

// overHTTP returns calls to a listener with a verifier.
func overHTTP(b *testing.B, verifier core.Verifier, protocol string, l kit.Load) *calls {
	b.Helper()
	operator := &kit.Counter{}
	return newCalls(b, operator, kit.Listen(b, manager, operator, verifier, l.Runtimes, false, protocol, kit.Plenty()), l)
}

// round is a number of calls that takes some tens of milliseconds.
func (c *calls) round() int { return max(500/c.load.Events, 4*c.load.Runtimes) }

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
