package installation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

type wanted struct {
	objects

	configuration *admissionregistrationv1.ValidatingWebhookConfiguration
	ownNamespace  bool
	restart       string
	sum           [sha256.Size]byte // of all
}

func (i *Installer) wanted(r *Runtime, ownNamespace bool, restart string) (*wanted, error) {
	configuration, err := i.configuration(r, ownNamespace)
	if err != nil {
		return nil, err
	}
	w := &wanted{
		objects: i.objects(r, restart), configuration: configuration, ownNamespace: ownNamespace, restart: restart,
	}
	w.sum = sumOf(i.namespace(), i.unstructured(configuration), w.early, w.late, w.deployment)
	return w, nil
}

// sumOf hashes objects. The keys of maps are in order.
func sumOf(objects ...any) [sha256.Size]byte {
	text, err := json.Marshal(objects)
	if err != nil {
		panic(fmt.Sprintf("objects of this build: %v", err)) // All of them are JSON.
	}
	return sha256.Sum256(text)
}

// look is the memory of the last complete installation of a runtime. Without it, as after a
// restart, the next call of Install applies all objects again.
type look struct {
	sum                       [sha256.Size]byte
	at                        time.Time
	ownNamespace              bool
	restart                   string
	configuration, deployment mark
}

// mark changes with each change of the spec of an object.
type mark struct {
	uid        types.UID
	generation int64
}

// markOf returns the zero mark for nil.
func markOf(object *unstructured.Unstructured) mark {
	if object == nil {
		return mark{}
	}
	return mark{object.GetUID(), object.GetGeneration()}
}

// looks are the last looks at runtimes. The zero value is ready.
type looks struct {
	mu    sync.Mutex
	known map[core.RuntimeID]look
}

func (l *looks) last(id core.RuntimeID) (look, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.known[id]
	return last, ok
}

func (l *looks) keep(id core.RuntimeID, last look) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = make(map[core.RuntimeID]look)
	}
	l.known[id] = last
}

func (l *looks) forget(id core.RuntimeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, id)
}

// glance reads the objects that watching depends on. It reports whether nothing is to be corrected.
// The last look was then not long ago, the objects to apply are the same, and nothing has changed
// there.
func (i *Installer) glance(ctx context.Context, in *cluster, r *Runtime) (status Status, unchanged bool, err error) {
	last, known := i.looks.last(r.ID)
	if !known || i.opts.Now().Sub(last.at) >= i.opts.VerifyAfter {
		return Status{}, false, nil
	}

	want, err := i.wanted(r, last.ownNamespace, last.restart)
	if err != nil || want.sum != last.sum {
		return Status{}, false, err
	}

	var (
		configuration, deployment *unstructured.Unstructured
		slices                    *unstructured.UnstructuredList
	)

	// One request opens the connection that the others share.
	if err := in.getInto(ctx, i.bareConfiguration(), &configuration)(); err != nil {
		return Status{}, false, err
	}

	if err := together(
		in.getInto(ctx, want.deployment, &deployment),
		func() (err error) { slices, err = i.slices(ctx, in); return err },
	); err != nil {
		return Status{}, false, err
	}

	if err := i.checkOwner(in, configuration, deployment); err != nil {
		return Status{}, false, err
	}

	if markOf(configuration) != last.configuration || markOf(deployment) != last.deployment {
		return Status{}, false, nil
	}

	status, err = i.judge(in, deployment, slices)

	// A missing object may keep the agent from answering.
	return status, status.State == Ready, err
}
