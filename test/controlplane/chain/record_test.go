package chain

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// record has the deliveries to the operator and its reconciles.
type record struct {
	rig.Arrivals

	mu     sync.Mutex
	counts map[string]int // of reconciles by manager and runtime
}

func (r *record) add(manager core.Manager, runtime string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[string(manager)+"/"+runtime]++
}

func (r *record) count(manager core.Manager, runtime string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[string(manager)+"/"+runtime]
}

func (r *record) has(a rig.Arrival) bool { return r.Count(a) > 0 }

// write makes an object in a runtime.
func (w *world) write(id core.RuntimeID, name string, labels map[string]string) {
	w.t.Helper()
	w.must(w.create(w.t.Context(), id, name, labels))
}

func (w *world) create(ctx context.Context, id core.RuntimeID, name string, labels map[string]string) error {
	return w.runtimes[id].Client.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: labels},
	})
}

// reaches writes objects until the event of one arrives, because a changed configuration takes
// effect after a moment. It returns the name of that one.
func (w *world) reaches(id core.RuntimeID, manager core.Manager, name string, labels map[string]string) string {
	w.t.Helper()
	var written []string
	before, arrived := w.record.count(manager, string(id)), -1
	w.eventually(fmt.Sprintf("%s of %s reaches %s", name, id, manager), func() bool {
		written = append(written, fmt.Sprintf("%s-%d", name, len(written)))
		w.write(id, written[len(written)-1], labels)
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
			arrived = slices.IndexFunc(written, func(object string) bool {
				return w.record.has(rig.Arrival{Runtime: id, Manager: manager, Object: object})
			})
			if arrived >= 0 && w.record.count(manager, string(id)) > before {
				return true
			}
			<-time.After(5 * time.Millisecond)
		}
		return false
	})
	return written[arrived]
}
