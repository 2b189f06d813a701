package loss

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// TestLateCommitsAreSeen makes writes beside slow webhooks. An API server calls all validating webhooks
// at once, and commits when the slowest has answered. With the default settings, on every contract and
// with either source, an operator sees each write, however late its commit is within the longest
// timeout of a webhook. An informer sees it once. With contract v3, no reconcile follows the one that
// has read the write.
func TestLateCommitsAreSeen(t *testing.T) {
	t.Parallel()
	delays := []time.Duration{0, 300 * time.Millisecond, 2 * time.Second, 10 * time.Second, 29 * time.Second}
	runtime, pki := newWorld(t)
	var scenes []*late
	for name, env := range map[string]map[string]string{
		"v1": {"CONTROL_PLANE_CONTRACT": "v1"}, "v2": {"CONTROL_PLANE_CONTRACT": "v2"}, "v3": {"CONTROL_PLANE_CONTRACT": "v3"},
		sourceInformer: {"CONTROL_PLANE_CONTRACT": "v3", "SOURCE": sourceInformer},
	} {
		l := newLate(t, runtime, pki, name, env)
		l.plan(t, delays)
		scenes = append(scenes, l)
	}
	for _, delay := range delays[1:] {
		lab.RegisterSlowWebhook(t, runtime, pki, delay)
	}
	var writing sync.WaitGroup
	for _, l := range scenes {
		l.began = time.Now()
		for i := range l.writes {
			writing.Go(func() { l.write(t, &l.writes[i]) })
		}
	}
	writing.Wait()
	for _, l := range scenes {
		l.check(t)
	}
	for _, l := range scenes {
		if l.name == "v3" {
			l.checkResends(t)
		}
	}
}

const absent, before, after = "absent", "before", "after"

// late is an agent with default settings, and an operator that records the state of each object.
type late struct {
	name    string
	runtime *apiserver.ControlPlane
	writes  []lateWrite
	began   time.Time // of the writes

	mu      sync.Mutex
	plane   *lab.Plane
	objects map[string]seen
	// resyncs counts the resyncs that the source has handled. Earlier reads count no more after a resync.
	resyncs int
}

// seen has the states that reconciles of an object read, one after the other, and counts what became of deliveries.
type seen struct {
	states []string
	// spared counts the deliveries that the source answered without a reconcile. needless counts the deliveries
	// that the source reconciled long after a reconcile had read the write.
	spared, needless int
	// readAt is when a reconcile first read the state after the write, since the last resync. It is zero before.
	readAt time.Time
	// delivered is when the last event came.
	delivered time.Time
}

// The source remembers a read for a minute after the last event, and a test notes the read a little after the source.
const (
	certainlyRead = 5 * time.Second
	remembered    = 50 * time.Second
)

// lateWrite is one write beside a slow webhook.
type lateWrite struct {
	name, want string
	delay      time.Duration
	// reconciles is the number of reconciles before the write.
	reconciles int
}

func newLate(t *testing.T, runtime *apiserver.ControlPlane, pki *lab.PKI, name string, env map[string]string) *late {
	t.Helper()
	l := &late{name: name, runtime: runtime, objects: map[string]seen{}}
	l.mu.Lock()
	l.plane = lab.StartPlane(t, pki, lab.PlaneOptions{
		Reconcile: l.reconcile,
		Handled:   l.handled,
	}, manager)
	l.mu.Unlock()
	env["RESEND_AFTER"] = "" // Unset: the default.
	kit.WatchConfigMaps(t, runtime, pki, manager, l.plane.Addr, l.scene(), env)
	return l
}

func (l *late) scene() string { return "late-" + l.name }

// plan plans the writes for each delay, and creates the objects that they change and delete.
func (l *late) plan(t *testing.T, delays []time.Duration) {
	t.Helper()
	for _, delay := range delays {
		for _, operation := range []string{"create", "change", "delete"} {
			for i := range *lateWrites {
				w := lateWrite{name: strings.ToLower(fmt.Sprintf("%s-%s-%s-%d", l.name, operation, delay, i)), want: after, delay: delay}
				if operation == "delete" {
					w.want = absent
				}
				if operation != "create" {
					lab.NoError(t, l.runtime.Client.Create(t.Context(), l.object(&w, before)))
					w.reconciles = 1
				}
				l.writes = append(l.writes, w)
			}
		}
	}
	for _, w := range l.writes {
		lab.Eventually(t, patience, w.name+" is reconciled", func() bool { return len(l.of(w.name).states) >= w.reconciles })
	}
}

func (l *late) object(w *lateWrite, state string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: w.name,
			Labels:      map[string]string{"scene": l.scene(), "delay": w.delay.String()},
			Annotations: map[string]string{core.OwnerAnnotation: "kcp-system/late"},
		},
		Data: map[string]string{"state": state},
	}
}

func (l *late) write(t *testing.T, w *lateWrite) {
	t.Helper()
	ctx, object, began := t.Context(), l.object(w, after), time.Now()
	var err error
	switch {
	case w.want == absent:
		err = l.runtime.Client.Delete(ctx, object)
	case w.reconciles == 0:
		err = l.runtime.Client.Create(ctx, object)
	default:
		err = l.runtime.Client.Update(ctx, object)
	}
	if took := time.Since(began); err != nil || took < w.delay {
		t.Errorf("%s took %v, want more than %v: %v", w.name, took, w.delay, err)
	}
}

// reconcile reads the object as an operator does. Resyncs have no object, and do not count.
func (l *late) reconcile(ctx context.Context, look lab.Look) (reconcile.Result, error) {
	if look.Object.Name == "" {
		return reconcile.Result{}, nil
	}
	l.mu.Lock()
	resyncs := l.resyncs
	runtime := l.plane.Client(look, l.runtime.Client)
	l.mu.Unlock()
	have := corev1.ConfigMap{}
	err := runtime.Get(ctx, look.Object, &have)
	state := have.Data["state"]
	if apierrors.IsNotFound(err) {
		state = absent
		err = nil
	}
	if err == nil {
		l.note(look.Object.Name, func(o *seen) {
			o.states = append(o.states, state)
			isAfter := state == after || state == absent && strings.Contains(look.Object.Name, "-delete-")
			if isAfter && o.readAt.IsZero() && resyncs == l.resyncs {
				o.readAt = time.Now()
			}
		})
	}
	return reconcile.Result{}, err
}

// handled notes whether the source made a request of a delivery, and whether that request was needless, because a
// reconcile had read the write before.
func (l *late) handled(h hook.Handled) {
	if h.Err != nil {
		return
	}
	if h.Delivery.Event.Resync {
		l.forgetReads()
		return
	}
	l.note(h.Delivery.Event.Watched.Name, func(o *seen) {
		now := time.Now()
		isKnown := !o.readAt.IsZero() && now.Sub(o.readAt) > certainlyRead && now.Sub(o.delivered) < remembered
		switch {
		case h.Requests == 0:
			o.spared++
		case isKnown:
			o.needless++
		}
		o.delivered = now
	})
}

func (l *late) forgetReads() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resyncs++
	for name, o := range l.objects {
		o.readAt = time.Time{}
		l.objects[name] = o
	}
}

func (l *late) note(name string, add func(*seen)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.objects[name]
	add(&o)
	l.objects[name] = o
}

func (l *late) of(name string) seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.objects[name]
	have.states = slices.Clone(have.states)
	return have
}

// check waits until every write was seen, and checks how often all were reconciled. Half as many more may be, as an
// answer that comes too late leads to another delivery.
func (l *late) check(t *testing.T) {
	t.Helper()
	all := 0
	most := 0
	for _, w := range l.writes {
		lab.Eventually(t, patience, fmt.Sprintf("%s is reconciled as %q", w.name, w.want), func() bool {
			states := l.of(w.name).states
			return len(states) > w.reconciles && states[len(states)-1] == w.want
		})
		all, most = all+len(l.of(w.name).states), most+1+w.reconciles
	}
	if l.name != sourceInformer {
		most *= 3 // A source behind the commit needs no resend. The webhook needs two for each write.
	}
	if all > most+most/2 {
		t.Errorf("%s: %d reconciles of %d writes, want about %d at most", l.name, all, len(l.writes), most)
	}
}

// checkResends checks that the source makes no request of a delivery after a reconcile has read the write, and that
// there were such deliveries. The resend 35 s after a write is one, unless the first delivery is as late. On a slow
// machine the earlier resends are left out, so no more than one delivery is certain.
func (l *late) checkResends(t *testing.T) {
	t.Helper()
	spared := 0
	lab.Eventually(t, patience, "a resend is spared", func() bool {
		spared = 0
		for _, w := range l.writes {
			spared += l.of(w.name).spared
		}
		return spared > 0
	})

	needless := 0
	for _, w := range l.writes {
		needless += l.of(w.name).needless
	}
	if needless > 0 {
		t.Errorf("%d deliveries were reconciled although a reconcile had read the write, want 0", needless)
	}
	t.Logf("%d deliveries of %d writes needed no reconcile", spared, len(l.writes))
}
