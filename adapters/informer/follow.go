package informer

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// backoff is between two attempts: 200 ms to 5 s, and up to half as much at random. It starts
// again after a minute without failure.
func backoff() wait.Backoff {
	const steps, jitter = 20, 0.5
	return wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: steps, Jitter: jitter}
}

// followWatch looks the resource up and follows its objects, again after each end, until ctx ends.
func (f *follower) followWatch(ctx context.Context) {
	const healthy = time.Minute
	delay := backoff()

	for ctx.Err() == nil {
		started := time.Now()

		r, err := discover(ctx, f.client, f.watch.Resource)

		switch {
		case err == nil:
			f.runReflector(ctx, r)
		case ctx.Err() == nil:
			f.noteLost(err)
		}

		if time.Since(started) > healthy {
			delay = backoff()
		}

		periodic.Pause(ctx, delay.Step())
	}
}

// noteLost handles a resource that cannot be looked up. If it is gone, its objects are, too.
func (f *follower) noteLost(err error) {
	f.noteFailure(err)
	if apierrors.IsNotFound(err) && f.objects != nil && len(f.objects.known) > 0 {
		f.objects.acceptResyncs()
		f.objects.forgetKnown()
	}
}

// runReflector follows the objects of a resource. It also ends when the objects have to be read in
// another way.
func (f *follower) runReflector(ctx context.Context, r *resource) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	q := &requests{follower: f, resource: r, parts: f.partsOf(r), gone: cancel}
	if f.objects != nil {
		f.objects.resource = r
		f.objects.uncounted = func() {}
	}

	if q.parts.generation {
		defer func() {
			if f.whole { // Digests of metadata cannot be compared with digests of whole objects.
				f.objects.forgetKnown()
			}
		}()

		f.objects.uncounted = func() {
			f.whole = true
			cancel()
		}
	}

	delay := backoff()
	discard := logr.Discard()
	cache.NewReflectorWithOptions(q.listWatch(), &state{}, f.store, cache.ReflectorOptions{
		Name: f.watch.name, TypeDescription: r.kind.Kind, Logger: &discard, Backoff: &delay,
	}).RunWithContext(ctx)
}

func (f *follower) partsOf(r *resource) parts {
	p := parts{field: f.watch.Field, hasStatus: r.hasStatus, labels: f.labels}
	if f.objects == nil {
		return p
	}

	isSpec := f.watch.Field == core.FieldSpec
	p.generation = isSpec && r.countsGenerations() && !f.whole
	p.owner = f.objects.opts.OwnerAnnotation
	return p
}
