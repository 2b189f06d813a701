package outbox_test

import (
	"fmt"
	"strconv"
	"testing"

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
