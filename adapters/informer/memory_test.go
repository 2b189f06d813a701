package informer

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// An object takes few bytes while it is watched, and also while a list after an outage is compared.
func TestMemoryOfAnObject(t *testing.T) {
	const (
		count       = 50_000
		mostWatched = 250
		mostListed  = 550
	)
	text := smallObjects(count)
	accepts := core.AcceptorFunc(func(core.Manager, core.WatchEvent) core.Outcome { return "" })
	o := &objects{
		watch: newWatched(watch.Watch{}, &Options{}), resource: &resource{}, acceptor: accepts,
		selects: func(string) bool { return true }, uncounted: func() {}, opts: new(Options{}.withDefaults()),
	}
	before := heap()
	replace := func() (live uint64) {
		l, err := readList(strings.NewReader(text), parts{field: core.FieldSpec})
		if err != nil {
			t.Fatal(err)
		}
		all := make([]any, len(l.Items))
		for n := range l.Items {
			all[n] = l.Items[n]
		}
		live = (heap() - before) / count
		_ = o.Replace(all, "")
		return live
	}
	replace()
	watched := (heap() - before) / count
	listed := replace()
	t.Logf("%d objects: %d bytes for each, and %d while they are listed again", len(o.known), watched, listed)
	if len(o.known) != count || watched > mostWatched || listed > mostListed {
		t.Errorf("want at most %d and %d", mostWatched, mostListed)
	}
	runtime.KeepAlive(text)
}

// smallObjects returns a list of custom resources of a few owners.
func smallObjects(count int) string {
	var b strings.Builder
	b.WriteString(`{"metadata":{"resourceVersion":"7"},"items":[`)
	for n := range count {
		fmt.Fprintf(&b, `{"metadata":{"name":"object-%d","namespace":"namespace-%d","resourceVersion":"%d","generation":3,`+
			`"uid":"00000000-0000-0000-0000-%012d","labels":{"operator.kyma-project.io/managed-by":"kyma","app":"app-%d"},`+
			`"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma-%d"},"finalizers":["example.com/finalizer"]},`+
			`"spec":{"n":%d}},`, n, n%40, n, n, n%20, n%20, n)
	}
	return strings.TrimSuffix(b.String(), ",") + "]}"
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
