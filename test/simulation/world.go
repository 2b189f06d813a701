package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/simulation/oracle"
)

// world runs one schedule in a bubble of virtual time.
type world struct {
	plan      *Plan
	pki       *pki
	network   *network
	behaviour *behaviour
	history   *oracle.History
	server    keySet // of the control plane
	clusters  []*cluster
	began     time.Time
	ending    atomic.Bool
	trace     func(string) // nil: none
	closers   []func()
	tasks     sync.WaitGroup
	failed    atomic.Pointer[error]
	uids      atomic.Int64

	mu            sync.Mutex
	operators     []*operator
	operatorLives []int
	leader        *operator
	vacant        time.Time    // earliest time of the next election
	deleted       *RuntimePlan // has no object in the control plane
	turn          int

	sinks sync.Map // runtime → stalled until, as time.Time
}

func newWorld(plan *Plan, certified *pki, trace func(string)) *world {
	w := &world{
		plan: plan, pki: certified, network: newNetwork(), behaviour: newBehaviour(plan), began: time.Now(), trace: trace,
		operators: make([]*operator, plan.Operators), operatorLives: make([]int, plan.Operators),
	}
	w.history = oracle.New(plan.promise())
	w.serve(certified.older, certified.older)
	for i := range plan.Runtimes {
		w.clusters = append(w.clusters, newCluster(w, i))
	}
	return w
}

// run plays the plan to its end and returns the violations that the oracle finds.
func (w *world) run() []oracle.Violation {
	w.history.BreakAll("no leader")
	w.serveOperators()
	for i := range w.operators {
		w.startOperator(i)
	}
	for _, c := range w.clusters {
		for i := range c.agents {
			c.startAgent(i, false)
		}
	}
	w.play()
	w.sleepUntil(w.plan.end())
	w.history.Calm()
	w.remind()
	sleep(w.plan.calm())
	w.checkKeys()
	w.shutDown()
	if err := w.failed.Load(); err != nil {
		return []oracle.Violation{{Rule: "world", Text: (*err).Error()}}
	}
	return w.history.Check()
}

// remind writes once more where an agent may know no owner or no manager. The resync of that agent then covers
// earlier writes.
func (w *world) remind() {
	sleep(time.Second) // An agent may be starting.
	for i := range w.plan.Runtimes {
		if w.plan.Runtimes[i].forgets() && !w.plan.Measured {
			w.clusters[i].remind(Write{Runtime: i, Kind: Update, Delay: time.Millisecond})
		}
	}
}

// play starts all writes, faults and samples.
func (w *world) play() {
	for _, write := range w.plan.Writes {
		w.tasks.Go(func() {
			if w.sleepUntil(write.At) {
				w.logf("begin: %s", write.String())
				w.clusters[write.Runtime].write(write)
			}
		})
	}
	for _, fault := range w.plan.Faults {
		w.tasks.Go(func() { w.inject(fault) })
	}
	w.tasks.Go(w.sample)
	if w.plan.Attacker {
		w.tasks.Go(w.attack)
	}
	for i := range w.plan.Runtimes {
		if r := &w.plan.Runtimes[i]; r.Lies != 0 {
			w.tasks.Go(func() { w.lie(r) })
		}
	}
}

// shutDown stops all processes, and waits for them.
func (w *world) shutDown() {
	w.sampleStates()
	w.ending.Store(true)
	w.tasks.Wait()
	for _, c := range w.clusters {
		for i := range c.agents {
			c.stopAgent(i, true)
		}
	}
	for i := range w.operators {
		w.mu.Lock()
		o := w.operators[i]
		w.mu.Unlock()
		if o != nil {
			o.end(true)
		}
	}
	for _, closeIt := range w.closers {
		closeIt()
	}
}

const sampleEvery = 5 * time.Second

// sample gives the freshness of all runtimes to the oracle every 5 s.
func (w *world) sample() {
	for !w.over() {
		w.sampleStates()
		sleep(sampleEvery)
	}
}

func (w *world) sampleStates() {
	for _, o := range w.working() {
		w.samplePolls(o)
		for _, c := range w.clusters {
			for _, manager := range w.plan.Managers {
				status := o.fleet.Get(core.RuntimeID(c.plan.Name), manager)
				w.history.State(c.plan.Name, manager, string(status.State), string(status.Reason))
			}
		}
	}
}

// samplePolls gives the intervals of polling and the backlogs to the oracle.
func (w *world) samplePolls(o *operator) {
	if o.observer() == nil {
		return
	}

	backlogs := o.fleet.Summaries()
	for _, manager := range w.plan.Managers {
		if s := backlogs[manager]; s != nil {
			w.history.Backlog(manager, s.Pending)
		}
	}
	for _, c := range w.clusters {
		var states []string
		for _, manager := range w.plan.Managers {
			states = append(states, string(o.fleet.Get(core.RuntimeID(c.plan.Name), manager).State))
		}
		w.history.Polled(c.plan.Name, states, o.fleet.RequeueAfter(core.RuntimeID(c.plan.Name)))
	}
}

// working returns the leader, or all active replicas.
func (w *world) working() (all []*operator) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.operators {
		if o != nil && (w.plan.Active || o == w.leader) {
			all = append(all, o)
		}
	}
	return all
}

// over reports whether the schedule is ending, so that nothing may start.
func (w *world) over() bool { return w.ending.Load() }

// sleepUntil reports whether the schedule still runs then.
func (w *world) sleepUntil(at time.Duration) bool {
	w.sleepUntilTime(w.began.Add(at))
	return !w.over()
}

func (w *world) sleepUntilTime(at time.Time) {
	if wait := time.Until(at); wait > 0 {
		sleep(wait)
	}
}

// sleep waits in virtual time. It has no context.
func sleep(d time.Duration) { <-time.After(d) }

func (w *world) clusterOf(runtime string) *cluster {
	for _, c := range w.clusters {
		if c.plan.Name == runtime {
			return c
		}
	}
	return nil
}

// must keeps the first error. A schedule with an error has no other result.
func (w *world) must(err error) {
	if err != nil {
		w.failed.CompareAndSwap(nil, &err)
	}
}

func (w *world) logf(format string, args ...any) {
	if w.trace != nil {
		w.trace(fmt.Sprintf("%12s ", time.Since(w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...))
	}
}

// newRandom returns random numbers for a seed and a name.
func newRandom(seed uint64, name string) func() float64 {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, sum.Sum64()))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}

// sink counts log lines. It blocks while it is stalled. It implements [io.Writer].
type sink struct {
	world  *world
	source string
	lines  atomic.Int64
}

func newSink(w *world, source string) *sink { return &sink{world: w, source: source} }

func (s *sink) count() int64 { return s.lines.Load() }

func (s *sink) Write(line []byte) (int, error) {
	s.lines.Add(1)
	s.world.sinks.Range(func(runtime, until any) bool {
		if name, _ := runtime.(string); strings.HasPrefix(s.source, name) {
			end, _ := until.(time.Time)
			s.world.sleepUntilTime(end)
		}
		return true
	})
	s.world.logf("log of %s: %s", s.source, line)
	return len(line), nil
}

// attack sends events of a runtime with the certificate of another one, and with one that has its name and another domain.
func (w *world) attack() {
	for _, key := range []*keys.Material{w.pki.clientKeys("evil"), w.pki.strangersKeys(w.plan.Runtimes[0].Name, "evil")} {
		for _, version := range contract.Versions() {
			forwarder := lab.Must(httpmtls.NewForwarder(key, serverName, version, httpmtls.Options{
				Identity: core.RuntimeID(w.plan.Runtimes[0].Name),
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return w.network.dial(ctx, "evil", serverName)
				},
			}))
			w.sleepUntil(w.plan.Length / 2)
			_ = forwarder.Forward(context.Background(), w.plan.Managers[0], w.forged())
			_ = forwarder.Close()
		}
	}
}

func (w *world) forged() core.Batch {
	batch := core.NewBatch(core.WatchEvent{Operation: core.OperationUpdate, Time: time.Now()})
	event := &batch.Events[0]
	event.Watched.Namespace = "default"
	event.Watched.Name = "evil-object"
	event.WatchedGVK.Version = "v1"
	event.WatchedGVK.Kind = "Widget"
	event.Owner.Namespace, event.Owner.Name = ownerNamespace, w.plan.Runtimes[0].owner(0)
	batch.Epoch = "evil"
	event.Sequence = 1
	event.ID = "evil-1"
	return batch
}
