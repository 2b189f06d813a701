package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// world is a fleet with its operator.
type world struct {
	options

	n        int
	variant  variant
	cluster  *cluster
	progress io.Writer
	log      *os.File

	namespace string
	ca        *testpki.CA
	trust     *trust
	volume    *testpki.Volume
	temporary string

	service *service
	oracle  *oracle
	shared  *agents
	agents  []*agent
	mu      sync.Mutex
	// replicas are all that were started. The last one runs.
	replicas []*replica
	// empty is the resident memory of the operator before the first connection, in bytes.
	empty int64

	stop    context.CancelFunc
	writers sync.WaitGroup
}

// newWorld starts everything, and returns when all runtimes are fresh.
func newWorld(
	ctx context.Context, c *cluster, opts options, n int, v variant, progress io.Writer,
) (w *world, err error) {
	debug.SetGCPercent(200) // This process has memory, and shares its processors with the operator.
	w = &world{options: opts, n: n, variant: v, cluster: c, progress: progress, service: &service{}, oracle: newOracle(n)}
	w.shared = &agents{oracle: w.oracle, protocol: v.Protocol, heartbeat: opts.heartbeat}
	ctx, w.stop = context.WithCancel(ctx)
	if err := w.build(ctx); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) build(ctx context.Context) (err error) {
	if w.temporary, err = os.MkdirTemp("", "fleetlab"); err != nil {
		return err
	}
	if err := os.MkdirAll(w.out, 0o750); err != nil {
		return err
	}
	if w.log, err = os.Create(filepath.Join(w.out, fmt.Sprintf("operator-%d-%s.log", w.n, w.variant.Name))); err != nil {
		return err
	}
	if w.ca, err = testpki.NewCA("CA 1", testpki.Options{}); err != nil {
		return err
	}
	w.trust, w.volume = newTrust(w.ca), testpki.NewVolume(w.temporary)
	if err := w.serve(w.ca, w.ca); err != nil {
		return err
	}
	began := now()
	if w.namespace, err = w.cluster.populate(ctx, w.n); err != nil {
		return err
	}
	w.say("%d objects in the API server after %s", w.n, round(began.since()))
	if err := w.newAgents(); err != nil {
		return err
	}
	return w.startAll(ctx)
}

// serve gives the operator a new certificate of issuer, and the CA bundle.
func (w *world) serve(issuer *testpki.CA, bundle ...*testpki.CA) error {
	leaf, err := issuer.Server("operator", testpki.Options{})
	if err != nil {
		return err
	}
	files, err := testpki.Files(leaf, bundle...)
	if err != nil {
		return err
	}
	return w.volume.Write(files)
}

func (w *world) newAgents() error {
	w.agents = make([]*agent, w.n)
	return inParallel(w.n, func(number int) error {
		a := &agent{number: number, name: nameOf(number), link: newLink(w.service, number), shared: w.shared}
		w.agents[number] = a
		return a.keys.issue(w.ca, a.name, w.trust)
	})
}

// startAll starts the operator and all agents, and the stream of changes.
func (w *world) startAll(ctx context.Context) error {
	operator, err := w.startReplica()
	if err != nil {
		return err
	}
	w.service.set(operator.address)
	if err := w.await(ctx, "the operator leads", func() bool { return operator.last.Load().Leading }); err != nil {
		return err
	}
	if err := sleep(ctx, w.every*2); err != nil { // Its caches are complete, and garbage is collected.
		return err
	}
	before, err := operator.usage()
	if err != nil {
		return err
	}
	w.empty = before.resident
	began := now()
	for _, a := range w.agents {
		if err := a.start(); err != nil {
			return err
		}
	}
	if err := w.awaitFresh(ctx); err != nil {
		return err
	}
	w.say("%d runtimes are fresh %s after the start of their agents", w.n, round(began.since()))
	w.writers.Go(func() { w.write(ctx) })
	return nil
}

// write changes random runtimes as a Poisson process. That equals one such process for each
// runtime.
func (w *world) write(ctx context.Context) {
	const objects = 20
	mean := float64(w.changeEvery) / float64(w.n)
	for next := time.Now(); ; {
		next = next.Add(time.Duration(rand.ExpFloat64() * mean))
		if sleep(ctx, time.Until(next)) != nil {
			return
		}
		w.agents[rand.IntN(w.n)].change(rand.IntN(objects))
	}
}

// startReplica starts a replica of the operator on a free port.
func (w *world) startReplica() (*replica, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	ca, certificate, key := w.volume.Paths()
	profiles, err := filepath.Abs(w.out)
	if err != nil {
		return nil, err
	}
	r, err := startReplica(operatorConfig{
		Kubeconfig: w.cluster.Kubeconfig, Namespace: w.namespace, Address: address,
		Files: keys.Paths{CA: ca, Certificate: certificate, Key: key},
		Lease: w.lease, Status: w.every, Poll: w.poll, Profile: profiles, Variant: w.variant,
	}, w.log, func(l look) { w.oracle.reconciled(int(l.Runtime), l.Began) })
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replicas = append(w.replicas, r)
	return r, nil
}

func freeAddress() (string, error) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return socket.Addr().String(), socket.Close()
}

// all returns the replicas that were started, in their order.
func (w *world) all() []*replica {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.replicas)
}

// operator is the replica that was started last.
func (w *world) operator() *replica {
	all := w.all()
	return all[len(all)-1]
}

func (w *world) fresh() int { return w.operator().last.Load().Runtimes[fleet.Fresh] }

// known returns the number of runtimes that have sent a request to the operator.
func (w *world) known() (n int) {
	for _, runtimes := range w.operator().last.Load().Runtimes {
		n += runtimes
	}
	return n
}

var errEnded = errors.New("the operator ended, and its log has the cause")

func (w *world) awaitFresh(ctx context.Context) error {
	return w.await(ctx, "all are fresh", func() bool { return w.fresh() == w.n })
}

// await waits for a condition. It fails when the operator ends.
func (w *world) await(ctx context.Context, what string, done func() bool) error {
	began := now()
	for !done() {
		if w.operator().hasEnded() {
			return fmt.Errorf("%w while the lab waited: %s", errEnded, what)
		}
		if began.since() > w.patience {
			return fmt.Errorf("not within %s: %s (%d of %d known, %d fresh, %d unseen)",
				w.patience, what, w.known(), w.n, w.fresh(), w.oracle.missing(began))
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits, and fails when ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *world) say(format string, values ...any) {
	fmt.Fprintf(w.progress, "%s  N=%d %s: %s\n", time.Now().Format(time.TimeOnly), w.n, w.variant.Name,
		fmt.Sprintf(format, values...))
}

func (w *world) close() {
	w.stop()
	w.writers.Wait()
	for _, r := range w.all() {
		r.kill()
	}
	_ = inParallel(len(w.agents), func(number int) error {
		if a := w.agents[number]; a != nil {
			a.stop()
		}
		return nil
	})
	w.agents = nil
	runtime.GC() // The next world begins without this one.
	_ = errors.Join(w.log.Close(), os.RemoveAll(w.temporary))
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
