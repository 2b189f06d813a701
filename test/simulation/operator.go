package simulation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// request is an item of the workqueue: an object, or a whole runtime.
type request struct{ runtime, object, owner string }

// operator is one life of one replica of the operator.
type operator struct {
	world       *world
	index       int
	name        string
	server      *server
	receive     func(context.Context) error
	fleet       *fleet.Fleet
	controllers map[core.Manager]*controller
	elected     chan struct{}
	registry    *controllerruntimetest.Cache
	runtimes    *controllerruntime.Runtimes
	first       *keys.Material // at the start
	follows     atomic.Bool    // whether it reloads key material
	stop        context.CancelFunc
	ctx         context.Context //nolint:containedctx // It is the life of the process.
	killed      atomic.Bool
	running     sync.WaitGroup
}

// controller is a source, its workqueue and one worker.
type controller struct {
	operator *operator
	manager  core.Manager
	source   *controllerruntime.Source[request]
	queue    priorityqueue.PriorityQueue[request]
}

func (w *world) newOperator(index, life int) *operator {
	o := &operator{
		world: w, index: index, name: fmt.Sprintf("operator-%d-life-%d", index, life), elected: make(chan struct{}),
		controllers: make(map[core.Manager]*controller),
	}
	o.server = newServer(o.name)
	o.first, _ = w.server.Material()
	o.follows.Store(!(*keys.Files)(nil).NeedLeaderElection())
	o.ctx, o.stop = context.WithCancel(context.Background())
	o.fleet = lab.Must(fleet.New(fleet.Options{
		Random: newRandom(w.plan.Seed, o.name),
		Resynced: func(r hook.Resync) {
			w.history.Resynced(o.name, r.Manager, string(r.Cause))
			w.logf("%s: resync for %s, cause %s", o.name, r.Manager, r.Cause)
		},
	}))
	o.register()
	handlers := make(map[core.Manager]core.Handler)
	for _, manager := range w.plan.Managers {
		c := o.newController(manager)
		o.controllers[manager] = c
		handlers[manager] = ownHandler{c.source, c}
	}
	verifier := w.noting(w.behaviour.verify(listener.SANPinning(twoOwners{o.runtimes, w.behaviour})))
	if w.plan.NATS {
		o.receive = o.consume(verifier, handlers)
		return o
	}
	o.receive = lab.Must(listener.New(o.peers(), verifier, handlers, o.options())).Start
	return o
}

// observer returns the fleet, nil without one.
func (o *operator) observer() *fleet.Fleet {
	if o.world.plan.Active && !o.world.plan.Fleets {
		return nil
	}
	return o.fleet
}

func (o *operator) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(newSink(o.world, o.name), nil))
}

func (o *operator) options() listener.Options {
	opts := listener.Options{
		Listener: o.server, Fleet: o.observer(), ShutdownTimeout: time.Second, Logger: o.logger(),
	}
	if !o.world.plan.Gateway {
		opts.TLS = keys.ServerTLSConfig(o)
	}
	if rate := o.world.plan.Rate; rate > 0 {
		opts.RuntimeRate, opts.RuntimeBurst = float64(rate), burstOf(rate)
	}
	return opts
}

// Material implements [keys.Source]. A manager follows the files from the start, or from the election on.
func (o *operator) Material() (*keys.Material, error) {
	if !o.follows.Load() {
		return o.first, nil
	}
	return o.world.server.Material()
}

// noting returns a verifier that reports its refusals to the oracle.
func (w *world) noting(next core.Verifier) core.Verifier {
	return core.VerifierFunc(func(ctx context.Context, peer core.Peer, event *core.WatchEvent) error {
		return w.note(peer.ID, event, func() error { return next.Verify(ctx, peer, event) })
	})
}

// note gives the oracle an event for which a call fails or panics.
func (w *world) note(sender core.RuntimeID, event *core.WatchEvent, call func() error) (err error) {
	taken := false
	defer func() {
		if !taken {
			w.history.Failed(string(sender), *event)
		}
	}()
	err = call()
	taken = err == nil
	return err
}

func (o *operator) peers() listener.Peers {
	roots := keys.Roots(o)
	if o.world.plan.Gateway {
		return listener.FromXFCC(listener.InsecureAnyProxy(), roots, listener.PeerOptions{})
	}
	return listener.FromTLS(roots, listener.PeerOptions{})
}

func (o *operator) newController(manager core.Manager) *controller {
	c := &controller{operator: o, manager: manager}
	c.queue = priorityqueue.New[request](o.name + "-" + string(manager))
	c.source = controllerruntime.NewSource(c.requests, controllerruntime.SourceOptions{Elected: o.elected})
	return c
}

// ownHandler is a handler that an operator puts in front of the source. The source itself turns a
// panic into an error.
type ownHandler struct {
	*controllerruntime.Source[request]

	controller *controller
}

// Handle implements [core.Handler].
func (h ownHandler) Handle(ctx context.Context, d core.Delivery) error {
	w := h.controller.operator.world
	_ = w.note(d.Runtime, &d.Event, func() error {
		w.behaviour.panicAt(inHandler, d.Runtime, &d.Event)
		return nil
	})
	return h.Source.Handle(ctx, d)
}

// requests is the map function. An event belongs to the runtime of its owner or, without an owner,
// to its sender.
func (c *controller) requests(ctx context.Context, d core.Delivery) ([]request, error) {
	if d.Event.Resync {
		c.operator.world.history.Handled(string(d.Runtime), d.Manager)
	}
	if err := c.operator.world.note(d.Runtime, &d.Event, func() error { return c.operator.world.behaviour.fail(ctx, d) }); err != nil {
		return nil, err
	}
	if c.operator.world.plan.Labels {
		return c.registered(ctx, d)
	}
	of := string(d.Runtime)
	owner := d.Event.Owner.Name
	if owner != "" {
		of = strings.TrimSuffix(owner, otherOwner)
	}
	c.operator.world.history.Delivered(string(d.Runtime), of, d.Manager, d.Event)
	if d.Event.Resync || c.operator.world.plan.Selective {
		return []request{{runtime: of, owner: owner}}, nil
	}
	return []request{{runtime: of, object: d.Event.Watched.Name}}, nil
}

// work reconciles the items of the queue until it shuts down.
func (c *controller) work() {
	for {
		r, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		c.look(r)
		c.queue.Done(r)
	}
}

const reconcileTime = 20 * time.Millisecond

// look reads the state, and reconciles for 20 ms. Later commits need another look.
func (c *controller) look(r request) {
	o := c.operator
	cluster := o.world.clusterOf(r.runtime)
	if cluster == nil {
		return
	}
	seen := cluster.read()
	there := c.source.Client(r, core.RuntimeID(r.runtime), reader{cluster: cluster})
	readThere(there, r.object)
	sleep(cmp.Or(o.world.plan.Work, reconcileTime))
	readThere(there, r.object) // As after a conflict: the reconcile acts on what it has read before.
	if o.killed.Load() {
		return
	}
	for name, object := range seen {
		switch {
		case r.object != "" && r.object != name:
		case r.owner == "", r.owner == object.owner:
			o.world.history.Looked(r.runtime, c.manager, name, object.version, r.object != "")
		case r.owner == object.former: // It sees that the object has left.
			o.world.history.Looked(r.runtime, c.manager, name, object.until, r.object != "")
		}
	}
	o.world.logf("%s looks at %s %s for %s", o.name, r.runtime, r.object, c.manager)
}

func (o *operator) start() {
	o.running.Go(func() { _ = o.receive(o.ctx) })
}

// lead starts the controllers. They look at all objects first.
func (o *operator) lead() {
	o.follows.Store(true)
	close(o.elected)
	for _, c := range o.controllers {
		o.world.must(c.source.Start(o.ctx, c.queue))
		for i := range o.world.plan.Runtimes {
			c.queue.Add(request{runtime: o.world.plan.Runtimes[i].Name})
		}
		o.running.Go(c.work)
	}
}

// end stops the process, in good order or as a crash.
func (o *operator) end(orderly bool) {
	if !orderly {
		o.killed.Store(true)
		_ = o.server.Close()
		o.world.network.reset(func(l *link) bool { return l.server == o.server || l.process == o.name })
	}
	o.stop()
	for _, c := range o.controllers {
		c.queue.ShutDown()
	}
	o.running.Wait()
}

// leaseTime is the time until the lease of a killed leader expires.
const leaseTime = 15 * time.Second

func (w *world) startOperator(index int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.operators[index] != nil || w.over() {
		return
	}
	w.operatorLives[index]++
	o := w.newOperator(index, w.operatorLives[index])
	w.operators[index] = o
	o.start()
	if w.plan.Active {
		w.history.Elected(o.name)
		o.lead()
	}
	w.elect()
	w.logf("%s starts", o.name)
}

func (w *world) stopOperator(index int, orderly bool) {
	w.mu.Lock()
	o := w.operators[index]
	w.operators[index] = nil
	led := o != nil && w.leader == o
	if led {
		w.leader = nil
		w.vacant = time.Now()
		w.history.BreakAll("no leader")
		if !orderly {
			w.vacant = w.vacant.Add(leaseTime)
		}
	}
	w.mu.Unlock()
	if o == nil {
		return
	}
	w.logf("%s stops, orderly %v, led %v", o.name, orderly, led)
	o.end(orderly)
	if led {
		w.sleepUntilTime(w.vacant)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elect()
}

// elect makes a replica the leader if there is none. The caller holds the lock.
func (w *world) elect() {
	if w.plan.Active || w.leader != nil || time.Now().Before(w.vacant) {
		return
	}
	for _, o := range w.operators {
		if o == nil {
			continue
		}
		w.leader = o
		w.history.Elected(o.name)
		o.lead()
		w.logf("%s leads", o.name)
		return
	}
}

// leading returns the index of the leader, -1 without one.
func (w *world) leading() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leader == nil {
		return -1
	}
	return w.leader.index
}

// runtimeLabel is the label with the identity of a runtime, on the object that represents the
// runtime in the control plane.
const runtimeLabel = "kyma-project.io/runtime-id"

func kymas() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

// kyma returns the object that represents a runtime.
func (r *RuntimePlan) kyma() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kymas())
	object.Namespace, object.Name = ownerNamespace, r.owner(0)
	object.Labels = map[string]string{runtimeLabel: r.Name}
	object.Annotations = map[string]string{controllerruntime.DomainAnnotation: domainOf(r.Name)}
	return object
}

// register fills the cache of a new process, which is synced after 2 s.
func (o *operator) register() {
	const coldCache = 2 * time.Second
	o.registry = controllerruntimetest.NewCache()
	o.registry.SetSynced(false)
	time.AfterFunc(coldCache, func() { o.registry.SetSynced(true) })
	for i := range o.world.plan.Runtimes {
		if r := &o.world.plan.Runtimes[i]; r != o.world.deleted {
			o.registry.Set(r.kyma())
		}
	}
	o.runtimes = lab.Must(controllerruntime.NewRuntimes(o.registry, lab.MetadataOf(kymas()),
		controllerruntime.ByLabel(runtimeLabel), controllerruntime.RuntimesOptions{Expected: o.world.expects}))
	lab.Must(true, o.runtimes.Track(o.fleet, o.world.plan.Managers...))
}

// expects reports whether the runtime of an object has an agent that sends heartbeats to a manager.
func (w *world) expects(object client.Object, _ core.Manager) bool {
	c := w.clusterOf(object.GetLabels()[runtimeLabel])
	return c != nil && w.plan.expects(c.plan)
}

// twoOwners are the domains of SAN pinning. Two owners of one runtime need a rule of the operator.
type twoOwners struct {
	next      listener.Domains
	behaviour *behaviour
}

// Domain implements [listener.Domains].
func (t twoOwners) Domain(ctx context.Context, id core.RuntimeID, event *core.WatchEvent) (string, error) {
	t.behaviour.panicAt(inDomains, id, event)
	about := *event
	about.Owner.Name = strings.TrimSuffix(event.Owner.Name, otherOwner)
	return t.next.Domain(ctx, id, &about)
}

// registered maps a delivery to whole runtimes by the objects in the control plane.
func (c *controller) registered(ctx context.Context, d core.Delivery) (requests []request, err error) {
	enqueue := controllerruntime.EnqueueOwner(controllerruntime.EnqueueByRuntime(c.operator.runtimes))
	named, err := enqueue(ctx, d)
	for _, one := range named {
		of := c.operator.world.plan.runtimeOf(one.NamespacedName)
		c.operator.world.history.Delivered(string(d.Runtime), of, d.Manager, d.Event)
		requests = append(requests, request{runtime: of})
	}
	return requests, err
}

// runtimeOf returns the runtime that an object represents.
func (p *Plan) runtimeOf(object types.NamespacedName) string {
	return strings.TrimPrefix(object.Name, p.Runtimes[0].Label)
}

// deleteRuntime deletes the object of a runtime, and returns the function that creates it again.
func (w *world) deleteRuntime(r *RuntimePlan) (create func()) {
	w.register(r, func(o *operator) {
		o.registry.Delete(types.NamespacedName{Namespace: ownerNamespace, Name: r.owner(0)})
	})
	mend := w.history.Break(r.Name, string(RuntimeDeleted))
	return func() {
		w.register(nil, func(o *operator) {
			o.registry.Set(r.kyma())
			for _, c := range o.controllers { // They watch these objects.
				c.queue.Add(request{runtime: r.Name})
			}
		})
		mend()
	}
}

// register changes the objects in each process, and in later ones.
func (w *world) register(deleted *RuntimePlan, change func(*operator)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleted = deleted
	for _, o := range w.operators {
		if o != nil {
			change(o)
		}
	}
}

func widgets() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
}

// readThere reads one object of a runtime, or all.
func readThere(there client.Reader, name string) {
	if name == "" {
		_ = there.List(context.Background(), new(metav1.PartialObjectMetadataList))
		return
	}
	key := client.ObjectKey{Namespace: "default", Name: name}
	_ = there.Get(context.Background(), key, new(metav1.PartialObjectMetadata)) // It may be absent.
}

type reader struct {
	client.Client

	cluster *cluster
}

// GroupVersionKindFor implements [client.Client].
func (reader) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return widgets(), nil
}

// RESTMapper implements [client.Client].
func (reader) RESTMapper() meta.RESTMapper { return widgetMapper }

var widgetMapper = func() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(widgets(), meta.RESTScopeNamespace)
	return mapper
}()

// Get implements [client.Reader].
func (r reader) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	object, known := r.cluster.read()[name.Name]
	if !known || !object.exists {
		return apierrors.NewNotFound(schema.GroupResource{Group: widgets().Group, Resource: "widgets"}, name.Name)
	}
	into.SetUID(types.UID(object.uid))
	into.SetResourceVersion(strconv.FormatInt(object.revision, 10))
	return nil
}

// List implements [client.Reader].
func (r reader) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, _ := into.(*metav1.PartialObjectMetadataList)
	for name, object := range r.cluster.read() {
		if object.exists {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name,
				UID: types.UID(object.uid), ResourceVersion: strconv.FormatInt(object.revision, 10),
			}})
		}
	}
	return nil
}
