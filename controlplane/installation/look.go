package installation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"
	"unique"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

type facts struct {
	ownNamespace bool   // this package has made, or makes, the namespace
	restart      string // the value of annotationRestart that is due
	pods         string // that of the pods, which may follow later
	// intact means that the last complete installation had the same configuration. If the present
	// one differs, others have replaced it, as by an older copy with the annotation of its time.
	intact bool
}

type wanted struct {
	objects
	facts
	digest digest

	configuration *admissionregistrationv1.ValidatingWebhookConfiguration // nil with an informer
	whole         *unstructured.Unstructured                              // the same, with annotationWhole
}

// digest changes with the objects to apply. Of the keys in the Secret it has the sum only.
// Runtimes share the bundle.
type digest struct {
	sum, secret [sha256.Size]byte // of all objects without the data of the Secret, and of that data
	bundle      unique.Handle[string]
	whole       string // the value of annotationWhole, empty with an informer
	serving     bool   // the Secret has a pair for the webhook
}

// public returns a [Runtime.Secret] without keys. The same objects are made of it, except for the
// Secret.
func (d digest) public() map[string][]byte {
	public := map[string][]byte{material.CA: []byte(d.bundle.Value())}
	if d.serving {
		public[material.ServingCertificate] = []byte{}
	}
	return public
}

func (i *Installer) wanted(r *Runtime, have facts) (*wanted, error) {
	w := &wanted{facts: have}
	var whole string
	if i.opts.Informer {
		// Without conditions, which need an API server, the watches report more than they should.
		if err := watch.Validate(r.Watches); err != nil {
			return nil, fmt.Errorf("installation: runtime %q: %w", r.ID, err)
		}
	} else {
		var err error
		if w.configuration, err = i.configuration(r, have.ownNamespace); err != nil {
			return nil, err
		}
		w.whole = i.finishedOf(w.configuration)
		whole = shortSum(sumOf(w.whole))
		annotate(w.whole, annotationWhole, whole)
	}
	w.objects = i.objects(r, have)
	secret := maps.Clone(w.secret.Object)
	delete(secret, "data")
	w.digest = digest{
		sum:    sumOf(i.namespace(), w.whole, w.early, secret, w.late, w.deployment),
		secret: sumOf(w.secret.Object["data"]),
		bundle: unique.Make(string(r.Secret[material.CA])), whole: whole, serving: r.hasServingPair(),
	}
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
	facts

	digest             digest
	at                 time.Time
	marker, deployment mark
}

func (i *Installer) lookOf(want *wanted, marker *unstructured.Unstructured, live agents) look {
	return look{
		facts: want.facts, digest: want.digest, at: i.opts.Now(),
		marker: markOf(marker), deployment: markOf(live.deployment),
	}
}

// mark changes with each change of the spec of an object.
type mark [sha256.Size]byte

func markOf(object *unstructured.Unstructured) mark {
	if object == nil {
		return mark{}
	}
	if generation := object.GetGeneration(); generation != 0 {
		return remote.Sum(string(object.GetUID()), strconv.FormatInt(generation, 10))
	}
	return remote.Sum(string(object.GetUID()), "version", object.GetResourceVersion()) // As objects of RBAC.
}

// outdate makes the next call of Install apply all objects. It returns the last look, or the zero
// look. The last look stays until an installation is complete, or another configuration is to be
// applied. So a call after one that failed still finds out that others have replaced ours.
func (i *Installer) outdate(id core.RuntimeID) look {
	found, _ := i.looks.Load(id)
	last, known := found.(look)
	if known {
		last.at = time.Time{}
		i.looks.Store(id, last)
	}
	return last
}

// glance reads the objects that watching depends on. It reports whether nothing is to be corrected.
// The last look was then not long ago, the objects to apply are the same, and nothing has changed
// there.
func (i *Installer) glance(ctx context.Context, in *cluster, r *Runtime) (status Status, unchanged bool, err error) {
	found, _ := i.looks.Load(r.ID)
	last, known := found.(look)
	if !known || i.opts.Now().Sub(last.at) >= verifyAfter {
		return Status{}, false, nil
	}
	known = r.Secret != nil
	if !known {
		r.Secret = last.digest.public()
	}
	want, err := i.wanted(r, last.facts)
	if err != nil || want.digest.sum != last.digest.sum || known && want.digest.secret != last.digest.secret {
		return Status{}, false, err
	}
	marker, agents, err := i.readAgain(ctx, in, want)
	if err != nil {
		return Status{}, false, err
	}
	if err := i.checkOwner(in, marker, agents.deployment); err != nil {
		return Status{}, false, err
	}
	if markOf(marker) != last.marker || markOf(agents.deployment) != last.deployment {
		return Status{}, false, nil
	}
	status, err = i.judge(in, agents)
	// A missing object may keep the agent from answering.
	return status, status.State == Ready, err
}

func (i *Installer) readAgain(
	ctx context.Context, in *cluster, want *wanted,
) (marker *unstructured.Unstructured, live agents, err error) {
	// One request opens the connection that the others share.
	if err := in.getInto(ctx, i.marker(), &marker)(); err != nil {
		return nil, agents{}, err
	}
	err = together(in.getInto(ctx, want.deployment, &live.deployment), i.slicesInto(ctx, in, &live.slices))
	return marker, live, err
}

// marker is the object that makes the agents see changes, and has their owner. Its name is unique
// in the runtime.
func (i *Installer) marker() *unstructured.Unstructured {
	if i.opts.Informer {
		return i.object(roleFile)
	}
	return i.bareConfiguration()
}
