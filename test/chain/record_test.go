package chain

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// arrival is a change of one object that was delivered.
type arrival struct {
	runtime core.RuntimeID
	manager core.Manager
	object  string
}

// record has the deliveries to the operator, and its reconciles.
type record struct {
	mu         sync.Mutex
	arrived    map[arrival]bool
	resynced   map[core.RuntimeID]time.Time // last, for the manager of the traffic
	reconciles map[string]int
	forbidden  map[string]int // by manager and reason
}

// delivered is called after each delivery that was enqueued, or refused.
func (r *record) delivered(d core.Delivery, requests int, err error) {
	if err != nil || requests != 1 {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.arrived == nil {
		r.arrived, r.resynced = map[arrival]bool{}, map[core.RuntimeID]time.Time{}
	}

	if d.Event.Resync && d.Manager == steady {
		r.resynced[d.Runtime] = time.Now()
	}

	r.arrived[arrival{d.Runtime, d.Manager, d.Event.Watched.Name}] = true
}

func (r *record) answered(_ string, manager core.Manager, status int, reason string, _ time.Duration) {
	if status != http.StatusForbidden {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.forbidden == nil {
		r.forbidden = map[string]int{}
	}

	r.forbidden[string(manager)+"/"+reason]++
}

func (r *record) refusals(manager core.Manager, reason string) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.forbidden[string(manager)+"/"+reason]
}

func (r *record) reconciled(manager core.Manager, runtime string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.reconciles == nil {
		r.reconciles = map[string]int{}
	}

	r.reconciles[string(manager)+"/"+runtime]++
}

func (r *record) has(a arrival) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.arrived[a]
}

func (r *record) reconcilesOf(manager core.Manager, runtime core.RuntimeID) int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.reconciles[string(manager)+"/"+string(runtime)]
}

func (r *record) resync(runtime core.RuntimeID) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.resynced[runtime]
}

// write makes an object in a runtime.
func (w *world) write(id core.RuntimeID, name string, labels map[string]string) {
	w.t.Helper()
	w.must(w.runtimes[id].Client.Create(w.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.objects, Name: name, Labels: labels},
	}))
}

// reaches writes objects until the event of one arrives, because a changed configuration takes
// effect after a moment. It returns the name of the last.
func (w *world) reaches(id core.RuntimeID, manager core.Manager, name string, labels map[string]string) string {
	w.t.Helper()

	var last string

	n := 0

	w.eventually(fmt.Sprintf("%s of %s reaches %s", name, id, manager), func() bool {
		last = fmt.Sprintf("%s-%d", name, n)
		n++
		before := w.record.reconcilesOf(manager, id)
		w.write(id, last, labels)

		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
			if w.record.has(arrival{id, manager, last}) && w.record.reconcilesOf(manager, id) > before {
				return true
			}

			<-time.After(5 * time.Millisecond)
		}

		return false
	})

	return last
}

// traffic is a stream of changes in one runtime, each of another object.
type traffic struct {
	w    *world
	id   core.RuntimeID
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	written []time.Time // of each commit
}

func (w *world) startTraffic(id core.RuntimeID) *traffic {
	tr := &traffic{w: w, id: id, stop: make(chan struct{}), done: make(chan struct{})}

	var once sync.Once

	tick := time.NewTicker(100 * time.Millisecond)

	go func() {
		defer close(tr.done)
		defer tick.Stop()

		for {
			select {
			case <-tr.stop:
				return
			case <-tick.C:
			}

			tr.write()
		}
	}()

	w.t.Cleanup(func() {
		once.Do(func() {
			select {
			case <-tr.stop:
			default:
				close(tr.stop)
			}
		})
		<-tr.done
	})

	return tr
}

func (tr *traffic) write() {
	tr.mu.Lock()
	n := len(tr.written)
	tr.mu.Unlock()

	err := tr.w.runtimes[tr.id].Client.Create(tr.w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: tr.w.objects, Name: trafficName(n), Labels: map[string]string{"watched-by": string(steady)},
	}})
	if err != nil && tr.w.ctx.Err() == nil {
		tr.w.t.Errorf("a write of a customer failed: %v", err)
	}

	tr.mu.Lock()
	defer tr.mu.Unlock()

	tr.written = append(tr.written, time.Now())
}

func trafficName(n int) string { return fmt.Sprintf("traffic-%d", n) }

func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()

	return len(tr.written)
}

// end stops the traffic and waits until every event has arrived. A resync may stand in for the
// events of writes before strict.
func (tr *traffic) end(t *testing.T, strict int) {
	t.Helper()
	close(tr.stop)
	<-tr.done

	resyncs := 0

	rig.Eventually(t, patience, fmt.Sprintf("everything of %s arrives", tr.id), func() bool {
		resyncs = 0

		for n, committed := range tr.written {
			switch {
			case tr.w.record.has(arrival{tr.id, steady, trafficName(n)}):
			case n < strict && tr.w.record.resync(tr.id).After(committed):
				resyncs++
			default:
				return false
			}
		}

		return true
	})

	failedOpen := rig.Sum(rig.ScrapeAPIServer(t, tr.w.runtimes[tr.id].ControlPlane),
		"apiserver_admission_webhook_fail_open_count")
	t.Logf("%s: %d changes, of which %d are stood in for by a resync; the API server went on without the agent %v times",
		tr.id, len(tr.written), resyncs, failedOpen)
}
