package httpmtls_test

import (
	"fmt"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
)

// BenchmarkForward sends single events of contract v2 over native mTLS. Client and server are in
// one process, and the allocations of both count.
func BenchmarkForward(b *testing.B) {
	for _, protocol := range protocols {
		for _, inFlight := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/inflight=%d", protocol, inFlight), func(b *testing.B) {
				keys := newPKI(b)
				end := newFarEnd(b, keys.server, accept)
				forwarder := newForwarder(b, keys.client, end.address(),
					httpmtls.Options{Protocol: protocol, InFlight: inFlight})
				b.ReportAllocs()
				b.SetParallelism(inFlight)
				if inFlight == 1 {
					for b.Loop() {
						mustForward(b, forwarder, event("object"))
					}
					return
				}

				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := forward(b, forwarder, event("object")); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}
