package loss

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/record"
)

const (
	// objects are written at the same time. Each is left alone after a while, and another takes its
	// place. The last write to each is checked, so last writes are in all phases of a schedule.
	objects = 50
	// pace is the mean time between two writes to one object.
	pace = 1200 * time.Millisecond
	// changes is how often an object is written, in the mean.
	changes = 4
)

// writers change objects until they are stopped.
type writers struct {
	*scene

	ledger *lab.Ledger
	stop   context.CancelFunc
	work   sync.WaitGroup
}

func startWriters(s *scene, seed uint64) *writers {
	ctx, stop := context.WithCancel(s.t.Context())
	w := &writers{scene: s, ledger: lab.NewLedger(), stop: stop}
	for i := range objects {
		w.work.Go(func() {
			one := &writer{writers: w, random: rand.New(rand.NewPCG(seed, uint64(i)+1)), slot: i}
			one.run(ctx)
		})
	}
	s.t.Cleanup(w.finish)
	return w
}

// finish returns when no write is under way any more.
func (w *writers) finish() {
	w.stop()
	w.work.Wait()
}

// writer writes one object at a time.
type writer struct {
	*writers

	random *rand.Rand
	slot   int
	count  int64
}

func (w *writer) run(ctx context.Context) {
	for life := 0; w.pause(ctx); life++ {
		w.live(ctx, fmt.Sprintf("widget-%d-%d", w.slot, life))
	}
}

// pause waits for the next write, and reports whether there is to be one.
func (w *writer) pause(ctx context.Context) bool {
	timer := time.NewTimer(time.Duration(w.random.ExpFloat64() * float64(pace)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// live writes one object until it is left alone or gone.
func (w *writer) live(ctx context.Context, name string) {
	w.create(name)
	for range int(w.random.ExpFloat64() * changes) {
		if !w.pause(ctx) {
			return
		}
		w.count++
		switch w.random.IntN(10) {
		case 0: // It matters to no operator.
			w.try(name, func(ctx context.Context) error {
				_, err := w.patch(ctx, name, `{"metadata":{"annotations":{"note":"%d"}}}`)
				return err
			})
		case 1:
			w.try(name, func(ctx context.Context) error {
				_, err := w.patch(ctx, name, `{"spec":{"n":-%d}}`, client.DryRunAll)
				return err
			})
		default:
			w.commit(name, func(ctx context.Context) (uint64, error) { return w.patch(ctx, name, `{"spec":{"n":%d}}`) })
		}
	}
	if w.random.IntN(5) == 0 && w.pause(ctx) {
		w.commit(name, func(ctx context.Context) (uint64, error) {
			return 0, client.IgnoreNotFound(w.plane.Client.Delete(ctx, lab.Widget(w.name, name, nil, 0)))
		})
	}
}

func (w *writer) create(name string) {
	w.commit(name, func(ctx context.Context) (uint64, error) {
		object := lab.Widget(w.name, name, w.labels(), 0)
		err := w.plane.Client.Create(ctx, object)
		if apierrors.IsAlreadyExists(err) { // The answer to an earlier try was lost.
			err = w.plane.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
		}
		return version(object), err
	})
}

// patch merges a text with the number of the write.
func (w *writer) patch(ctx context.Context, name, text string, opts ...client.PatchOption) (uint64, error) {
	object := lab.Widget(w.name, name, nil, 0)
	err := w.plane.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, text, w.count)), opts...)
	return version(object), err
}

func version(object *unstructured.Unstructured) uint64 {
	n, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64) // After an error there is none.
	return n
}

// commit makes a write that counts.
func (w *writer) commit(name string, write func(ctx context.Context) (uint64, error)) {
	done := lab.Write{Object: name, Sent: record.Now()}
	w.try(name, func(ctx context.Context) (err error) {
		done.Version, err = write(ctx)
		return err
	})
	done.Returned = record.Now()
	w.ledger.Add(done)
}

// try makes a write that can be repeated, until it succeeds. Stopping does not interrupt it,
// because its result would be unknown.
func (w *writer) try(name string, write func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := write(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			w.t.Errorf("write to %s: %v", name, err)
			return
		}
		w.t.Logf("write to %s is repeated: %v", name, err)
	}
}
