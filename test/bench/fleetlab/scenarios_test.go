package fleetlab

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// scenario is a fault, or a load, of a fleet that works. run returns when the fault is over, and
// from when the recovery counts. Then all runtimes must become fresh, and all changes must be
// reconciled.
type scenario struct {
	name string
	run  func(w *world, r *result) (ended time.Time)
}

// scenarios returns all scenarios in the order in which they are played.
func scenarios() []scenario {
	return []scenario{
		{"steady", steady},
		{"storm", storm},
		{"restart", restart},
		{"leader", leader},
		{"rotation", rotation},
		{"flapping", flapping},
	}
}

// steady has heartbeats and random changes only.
func steady(*world, *result) time.Time { return <-time.After(*hold) }

// storm has a hundred changes of each runtime in ten seconds.
func storm(w *world, r *result) time.Time {
	const each, over = 100, 10 * time.Second
	began, total := time.Now(), each*len(w.runtimes)
	for i := range total {
		if wait := over*time.Duration(i)/time.Duration(total) - time.Since(began); wait > 0 {
			<-time.After(max(wait, 5*time.Millisecond))
		}
		w.runtimes[i%len(w.runtimes)].change(i / len(w.runtimes))
	}
	ended := time.Now()
	w.awaitSeen(*patience)
	r.note("all changes reconciled after", ended)
	<-time.After(outbox.Defaults().ResendResync)
	return ended
}

func (r *result) note(what string, since time.Time) {
	r.notes = append(r.notes, fmt.Sprintf("%s %v", what, time.Since(since).Round(time.Millisecond)))
}

// restart kills the operator, changes all runtimes, and starts the operator again. Its lease is
// removed, so that it leads at once, as one without leader election.
func restart(w *world, r *result) time.Time {
	w.operator().Kill()
	ended := time.Now()
	lab.NoError(w.t, w.plane.Client.Delete(w.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: w.namespace},
	}))
	w.changeAll()
	w.network.lead(w.startReplica().address)
	w.awaitLeader(r, ended)
	return ended
}

// leader kills the leader beside another replica, and changes all runtimes.
func leader(w *world, r *result) time.Time {
	old, standby := w.operator(), w.startReplica()
	w.await("the other replica listens", func() bool { return lab.Accepts(standby.address) })
	w.network.lead(old.address, standby.address)
	old.Kill()
	ended := time.Now()
	w.network.lead(standby.address)
	w.changeAll()
	w.awaitLeader(r, ended)
	return ended
}

func (w *world) changeAll() {
	for _, r := range w.runtimes {
		r.change(0)
	}
}

func (w *world) awaitLeader(r *result, killed time.Time) {
	w.await("the operator leads", func() bool { return w.now().Leading })
	r.note("leads after", killed)
}

// rotation replaces the CA, all leaves of runtimes and that of the operator, with overlap.
func rotation(w *world, _ *result) time.Time {
	// Agents and operator have read their key material then.
	wait := func() { <-time.After(2 * poll) }
	old, next := w.ca, lab.Must(testpki.NewCA("CA "+time.Now().String(), testpki.Options{}))
	w.serve(old, old, next)
	wait()
	w.rolling(func(r *runtime) { r.trust(old, next) })
	wait()
	w.serve(next, old, next)
	wait()
	w.rolling(func(r *runtime) {
		r.renew(next)
		r.trust(old, next)
	})
	w.rolling(func(r *runtime) { r.trust(next) })
	wait()
	w.serve(next, next)
	wait()
	w.ca = next
	return time.Now()
}

// rolling calls change for each runtime, spread over half of the duration of a fault.
func (w *world) rolling(change func(*runtime)) {
	for _, r := range w.runtimes {
		change(r)
		<-time.After(*hold / 2 / time.Duration(len(w.runtimes)))
	}
}

// flapping kills and starts one agent of a hundred again and again, after changes that it may not
// have sent.
func flapping(w *world, r *result) time.Time {
	const oneIn, changes = 100, 10
	var (
		flaps atomic.Int64
		all   sync.WaitGroup
		over  = time.Now().Add(*hold)
	)
	for i := 0; i < len(w.runtimes); i += oneIn {
		all.Go(func() {
			for time.Now().Before(over) {
				flaps.Add(1)
				for object := range changes {
					w.runtimes[i].change(object)
				}
				w.runtimes[i].stop()
				w.runtimes[i].start()
				<-time.After(*hold / changes)
			}
		})
	}
	all.Wait()
	r.notes = append(r.notes, fmt.Sprintf("%d restarts of agents", flaps.Load()))
	return time.Now()
}
