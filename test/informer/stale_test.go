package informer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/informer"
	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const manager core.Manager = "kyma"

// path is a whole one: a runtime, an agent with the informer as its source, a listener, and a
// reconcile that reads the object.
type path struct {
	t       testing.TB
	runtime *apiserver.ControlPlane

	mu    sync.Mutex
	looks map[string][]look
}

// look is one reconcile.
type look struct {
	at    time.Time
	state string
}

const absent, before, after = "absent", "before", "after"

func newPath(t testing.TB, pki *lab.PKI) *path {
	t.Helper()
	p := &path{t: t, runtime: sharedPlane(t), looks: map[string][]look{}}
	plane := lab.StartPlane(t, pki, lab.PlaneOptions{Reconcile: p.reconcile}, manager)
	ca, cert, key := pki.RuntimeVolume("runtime-1", "runtime-1.example.com").Paths()
	ready := make(chan func() error, 1)
	source := func(ctx context.Context, inbox *agent.Inbox) error {
		watched, err := informer.New(p.runtime.Config, inbox, []watch.Watch{{
			Name: named("path"), Manager: manager, Selector: selector("path"),
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		}}, informer.Options{Hooks: informer.Hooks{Proved: inbox.Proved}})
		if err != nil {
			return err
		}
		ready <- watched.Ready
		return watched.Start(ctx)
	}
	agent, err := agent.New(t.Context(), agent.Parts{Source: source}, agent.Options{
		Managers:       []core.Manager{manager},
		Keys:           agent.Keys{Client: keys.Paths{CA: ca, Certificate: cert, Key: key}},
		ControlPlane:   agent.ControlPlane{Address: plane.Addr, ServerName: "localhost"},
		Outbox:         outbox.Options{Settle: -1, Resend: []time.Duration{}, ResendResync: -1},
		MetricsAddress: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "agent", agent.Start)
	isReady := <-ready
	lab.Eventually(t, patience, "the watch is established", func() bool { return isReady() == nil })
	return p
}

func (p *path) object(name, delay, state string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name,
			Labels: map[string]string{"scene": "path", "delay": delay},
		},
		Data: map[string]string{"state": state},
	}
}

// reconcile reads the object as an operator does.
func (p *path) reconcile(ctx context.Context, asked lab.Look) (reconcile.Result, error) {
	began := time.Now()
	if asked.Object.Name == "" {
		return reconcile.Result{}, nil
	}
	var have corev1.ConfigMap
	err := p.runtime.Client.Get(ctx, asked.Object, &have)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	state := have.Data["state"]
	if apierrors.IsNotFound(err) {
		state = absent
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks[asked.Object.Name] = append(p.looks[asked.Object.Name], look{began, state})
	return reconcile.Result{}, nil
}

func (p *path) looksAt(name string) []look {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.looks[name])
}

// An informer sees a write after its commit, however long another webhook holds it up. So each write
// leads to exactly one look, which sees it: nothing is sent again.
func TestNoStaleReadsBesideSlowWebhooks(t *testing.T) {
	delays := []time.Duration{0, 300 * time.Millisecond, 2 * time.Second, 10 * time.Second}
	pki := lab.NewPKI(t)
	p := newPath(t, pki)
	writes := p.plan(delays)
	for _, delay := range delays[1:] {
		lab.RegisterSlowWebhook(t, p.runtime, pki, delay)
	}
	var writing sync.WaitGroup
	for _, w := range writes {
		writing.Go(func() { p.play(w) })
	}
	writing.Wait()
	stale, second := 0, 0
	worst := map[time.Duration]time.Duration{}
	for _, w := range writes {
		looks := p.looksAt(w.name)[w.looks:]
		second += len(looks) - 1
		for _, l := range looks {
			if l.state != w.want {
				stale++
			}
		}
		worst[w.delay] = max(worst[w.delay], looks[0].at.Sub(w.ended))
	}
	t.Logf("%d writes: %d looks are stale, %d are second ones; latest look after the end of a write: %v", len(writes),
		stale, second, worst)
	if stale > 0 || second > 0 {
		t.Errorf("%d stale and %d second looks, want none", stale, second)
	}
}

// planned is a write beside a slow webhook.
type planned struct {
	name, operation string
	delay           time.Duration
	// looks is the number of looks before the write.
	looks int
	// want is the state after the write.
	want  string
	ended time.Time
}

// plan plans the writes for each delay, and creates the objects that they change and delete.
func (p *path) plan(delays []time.Duration) (writes []*planned) {
	p.t.Helper()
	const each = 7
	for _, delay := range delays {
		for operation, want := range map[string]string{"create": after, "change": after, "delete": absent} {
			for i := range each {
				w := &planned{name: fmt.Sprintf("%s-%s-%d", operation, delay, i), operation: operation, delay: delay, want: want}
				writes = append(writes, w)
				if operation != "create" {
					add(p.t, p.runtime.Client, p.object(w.name, delay.String(), before))
					w.looks = 1
				}
			}
		}
	}
	for _, w := range writes {
		lab.Eventually(p.t, patience, "looks at "+w.name, func() bool { return len(p.looksAt(w.name)) == w.looks })
	}
	return writes
}

// play makes a write, and returns after the next look.
func (p *path) play(w *planned) {
	object, ctx := p.object(w.name, w.delay.String(), after), p.t.Context()
	began := time.Now()
	var err error
	switch w.operation {
	case "create":
		err = p.runtime.Client.Create(ctx, object)
	case "change":
		err = p.runtime.Client.Update(ctx, object)
	default:
		err = p.runtime.Client.Delete(ctx, object)
	}
	w.ended = time.Now()
	if took := w.ended.Sub(began); err != nil || took < w.delay {
		p.t.Errorf("%s took %v, want more than %v: %v", w.name, took, w.delay, err)
	}
	lab.Eventually(p.t, patience, "a look at "+w.name, func() bool { return len(p.looksAt(w.name)) > w.looks })
}

// TestCommitToReconcile measures from the beginning of a write, so that the time is an upper bound.
func TestCommitToReconcile(t *testing.T) {
	const writes = 500
	p := newPath(t, lab.NewPKI(t))
	object := p.object("measured", "0s", before)
	create(t, p.runtime.Client, object)
	lab.Eventually(t, patience, "the first look", func() bool { return len(p.looksAt("measured")) == 1 })
	var fromBegin, fromEnd []time.Duration
	for n := range writes {
		object.Data["state"] = strconv.Itoa(n)
		began := time.Now()
		if err := p.runtime.Client.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		lab.Eventually(t, patience, "a look", func() bool { return len(p.looksAt("measured")) == n+2 })
		l := p.looksAt("measured")[n+1]
		if l.state != strconv.Itoa(n) {
			t.Errorf("look %d reads %s", n, l.state)
		}
		fromBegin, fromEnd = append(fromBegin, l.at.Sub(began)), append(fromEnd, max(0, l.at.Sub(ended)))
	}
	slices.Sort(fromBegin)
	slices.Sort(fromEnd)
	t.Logf("%d writes: reconcile starts %v / %v (p50 / p99) after the beginning of the write, %v / %v after its end", writes,
		fromBegin[writes/2], fromBegin[writes*99/100], fromEnd[writes/2], fromEnd[writes*99/100])
	if p99 := fromEnd[writes*99/100]; p99 > 50*time.Millisecond && !testing.Short() {
		t.Errorf("p99 is %v, want at most 50 ms", p99)
	}
}
