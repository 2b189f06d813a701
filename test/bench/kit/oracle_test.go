package kit

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

func TestOracle(t *testing.T) {
	t.Parallel()
	o := NewOracle(2)
	before := record.Now()
	o.Changed(0)
	o.Reconciled(0, before)
	if n := o.Missing(record.Now()); n != 1 {
		t.Errorf("%d runtimes are missing after a reconcile that began before the change, want 1", n)
	}
	o.Reconciled(1, record.Now())
	o.Reconciled(0, record.Now())
	if n := o.Missing(record.Now()); n != 0 {
		t.Errorf("%d runtimes are missing after their reconciles, want 0", n)
	}
	if taken := o.Latency.Take(); len(taken) != 1 {
		t.Errorf("%d latencies, want 1: that of the change", len(taken))
	}
}
