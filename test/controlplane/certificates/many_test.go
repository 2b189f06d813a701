package certificates_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// BenchmarkReconcile reads all runtimes while none needs a change. It reports the processor time of
// the operator, without that of the API server.
func BenchmarkReconcile(b *testing.B) {
	const many = 1000

	c := startPlane(b)
	set := newSet(b, c, certificates.Confirmations(everybodyConfirms))
	bootstrapped(b, set)
	ensureMany(b, c, set, many)

	begun := cpu(b)

	b.ReportAllocs()
	for b.Loop() {
		if status, err := set.Reconcile(b.Context()); err != nil || status.Phase != certificates.PhaseStable {
			b.Fatalf("got %+v, %v", status, err)
		}
	}

	b.ReportMetric(float64((cpu(b)-begun).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// ensureMany returns when cert-manager has issued the certificates of many runtimes.
func ensureMany(b *testing.B, c client.Client, set *certificates.Certificates, many int) {
	b.Helper()
	const workers = 8

	var tasks sync.WaitGroup
	for worker := range workers {
		tasks.Go(func() {
			for n := worker; n < many; n += workers {
				id := core.RuntimeID(fmt.Sprintf("runtime-%d", n))
				if _, err := set.EnsureRuntime(b.Context(), certificates.Runtime{ID: id, Domain: domainOf(id)}); err != nil {
					b.Error(err)
				}
			}
		})
	}

	tasks.Wait()

	pause := time.NewTicker(time.Second) // cert-manager has enough to do.
	defer pause.Stop()

	rig.Eventually(b, 5*patience, "all certificates are issued", func() bool {
		<-pause.C
		return issued(b.Context(), c) > 2*many // Each runtime has two.
	})
}

func issued(ctx context.Context, c client.Client) (n int) {
	var list certv1.CertificateList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0
	}

	for i := range list.Items {
		if list.Items[i].Status.NotAfter != nil {
			n++
		}
	}
	return n
}

// cpu returns the processor time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
