package simulation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
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
		Resynced: func(manager core.Manager, cause string) {
			w.history.Resynced(o.name, manager, cause)
			w.logf("%s: resync for %s, cause %s", o.name, manager, cause)
		},
	}))
	o.register()
	handlers := make(map[core.Manager]core.Handler)
	for _, manager := range w.plan.Managers {
		c := o.newController(manager)
		o.controllers[manager] = c
		handlers[manager] = c.source
	}
	verifier := w.noting(w.behaviour.verify(listener.SANPinning(twoOwners{o.runtimes})))
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
func (w *world) note(runtime core.RuntimeID, event *core.WatchEvent, call func() error) (err error) {
	taken := false
	defer func() {
		if !taken {
			w.history.Failed(string(runtime), *event)
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
	return listener.FromTLSWithRoots(roots, listener.PeerOptions{})
}

func (o *operator) newController(manager core.Manager) *controller {
	c := &controller{operator: o, manager: manager}
	c.queue = priorityqueue.New[request](o.name + "-" + string(manager))
	c.source = controllerruntime.NewSource(c.requests, controllerruntime.SourceOptions{Elected: o.elected})
	return c
}

// requests is the map function. An event belongs to the runtime of its owner, or else to its sender.
func (c *controller) requests(ctx context.Context, d core.Delivery) ([]request, error) {
	if err := c.operator.world.note(d.Runtime, &d.Event, func() error { return c.operator.world.behaviour.fail(ctx, d) }); err != nil {
		return nil, err
	}
	if c.operator.world.plan.Labels {
		return c.registered(ctx, d)
	}
	runtime, owner := string(d.Runtime), d.Event.Owner.Name
	if owner != "" {
		runtime = strings.TrimSuffix(owner, otherOwner)
	}
	c.operator.world.history.Delivered(string(d.Runtime), runtime, d.Manager, d.Event)
	if d.Event.Resync || c.operator.world.plan.Selective {
		return []request{{runtime: runtime, owner: owner}}, nil
	}
	return []request{{runtime: runtime, object: d.Event.Watched.Name}}, nil
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
