package outbox_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// Admission waits for Accept: its cost must not depend on the number of pending events.
func BenchmarkAccept(b *testing.B) {
	for _, pending := range []int{0, 100, 9_000} {
		b.Run(fmt.Sprint("pending=", pending), func(b *testing.B) {
			o := fill(b, pending)
			event := named("new")
			b.ReportAllocs()
			for b.Loop() {
				o.Accept(kyma, event)
			}
		})
	}
}

// BenchmarkAcceptWithoutRoom has new keys only, for each of which another one has to give way.
func BenchmarkAcceptWithoutRoom(b *testing.B) {
	o, err := outbox.New(&plane{}, outbox.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 2 * outbox.Defaults().MaxKeys {
		o.Accept(core.Manager("manager-"+strconv.Itoa(i%100)), named(strconv.Itoa(i)))
	}
	events := make([]core.WatchEvent, outbox.Defaults().MaxKeys)
	for i := range events {
		events[i] = named("new-" + strconv.Itoa(i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o.Accept("manager-0", events[i%len(events)])
	}
}

func fill(b *testing.B, pending int) *outbox.Outbox {
	b.Helper()
	o, err := outbox.New(&plane{}, outbox.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range pending {
		o.Accept(kyma, named(strconv.Itoa(i)))
	}
	return o
}

// BenchmarkThroughput shows how many distinct events a second pass when the forwarder takes no
// time.
func BenchmarkThroughput(b *testing.B) {
	for _, batch := range []int{1, 500} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) { throughput(b, batch) })
	}
}

func throughput(b *testing.B, batch int) {
	b.Helper()
	forwarder := core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })
	o, err := outbox.New(forwarder, outbox.Options{
		Settle: -1, Resend: []time.Duration{}, MaxKeys: b.N + 1, MaxBatch: batch, InFlight: 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	events := make([]core.WatchEvent, b.N)
	for i := range events {
		events[i] = named(strconv.Itoa(i))
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { ended <- o.Start(ctx) }()
	for i := range events {
		o.Accept(kyma, events[i])
	}
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	if c := o.Counts()[kyma]; c.Delivered != int64(b.N) {
		b.Fatalf("counts %+v, want %d delivered", c, b.N)
	}
}
