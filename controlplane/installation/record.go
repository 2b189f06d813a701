package installation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// The struct has the objects to apply, and facts about those that are there. A visit makes it in
// render, and only renewConfiguration changes whole after that.
type wanted struct {
	configuration *unstructured.Unstructured   // Nil with an informer.
	managers      *unstructured.Unstructured   // Early, too.
	early, late   []*unstructured.Unstructured // The late ones need early ones.
	deployment    *unstructured.Unstructured   // As late.
	whole         bool                         // No webhook of the configuration waits for the agent.
	missed        bool                         // Others have changed webhooks.
	unchanged     bool                         // The webhooks are as they should be.
	waits         bool                         // A restart of the agents is due later.
	exclusions    exclusions                   // By others, that the webhooks keep.
	removed       string                       // Exclusions by others, that the webhooks lose now.
	seen          record                       // Without the objects that are there.
}

// applied are the objects that a visit applies, except the namespace and the webhook
// configuration.
func (w *wanted) applied() []*unstructured.Unstructured {
	return append(slices.Concat(w.early, w.late), w.deployment)
}

// record describes the objects after a complete installation. It is lost at a restart of the
// process.
type record struct {
	// parameters and secret change with the parameters of the objects to apply. Of the keys in the
	// Secret there is the sum only.
	parameters, secret [sha256.Size]byte
	whole              string // the value of annotationWhole, empty with an informer
	at                 time.Time
	marker, deployment objectVersion
	exclusions         exclusions
}

// parametersOf has all that the objects are made of, except the options and the Secret.
func (i *Installer) parametersOf(r *Runtime) [sha256.Size]byte {
	return sumOf(watch.DocumentOf(r.Watches), i.addressFor(r), r.PullSecret)
}

// ownNamespace means that this package has made, or makes, the namespace.
func (i *Installer) wanted(r *Runtime, ownNamespace bool) (*wanted, error) {
	w := &wanted{seen: record{parameters: i.parametersOf(r), secret: sumOf(r.Secret)}}
	if i.opts.Informer {
		// Without conditions, which need an API server, the watches report more than they should.
		if err := watch.Validate(r.Watches); err != nil {
			return nil, fmt.Errorf("installation: runtime %q: %w", r.ID, err)
		}
	} else {
		configuration, err := i.configuration(r, ownNamespace)
		if err != nil {
			return nil, err
		}
		w.configuration = i.finishedOf(configuration)
		w.seen.whole = shortSum(sumOf(w.configuration))
		annotate(w.configuration, i.key(annotationWhole), w.seen.whole)
		annotate(w.configuration, i.key(annotationRuntime), string(r.ID))
	}
	return w, nil
}

// sumOf hashes values. The keys of maps are in order.
func sumOf(values ...any) [sha256.Size]byte {
	text, err := json.Marshal(values)
	if err != nil {
		panic(fmt.Sprintf("objects of this build: %v", err)) // All of them are JSON.
	}
	return sha256.Sum256(text)
}

// objectVersion changes with each change of the spec of an object.
type objectVersion [sha256.Size]byte

func versionOf(object *unstructured.Unstructured) objectVersion {
	if object == nil {
		return objectVersion{}
	}
	version := object.GetResourceVersion() // Objects of RBAC have no generation.
	if generation := object.GetGeneration(); generation != 0 {
		version = strconv.FormatInt(generation, 10)
	}
	return remote.Sum(string(object.GetUID()), version)
}

// outdate makes the next call of Install apply all objects. It returns the record of the last
// complete installation, which is kept: if this call fails, the next one can still detect that
// others have replaced the configuration.
func (i *Installer) outdate(id core.RuntimeID) record {
	found, _ := i.records.Load(id)
	last, known := found.(record)
	if known {
		last.at = time.Time{}
		i.records.Store(id, last)
	}
	return last
}

// checkUnchanged reads the objects that watching depends on, and reports whether they need no
// correction: the last complete installation is recent, and neither its parameters nor these
// objects have changed. A nil Secret counts as unchanged.
func (v *visit) checkUnchanged(ctx context.Context) (status Status, unchanged bool, err error) {
	if !v.loadRecord() {
		return Status{}, false, nil
	}
	marker, agents, err := v.readAgain(ctx)
	if err != nil {
		return Status{}, false, err
	}
	isChanged := versionOf(marker) != v.last.marker || versionOf(agents.deployment) != v.last.deployment
	if isChanged || !v.haveMark(marker, agents.deployment) {
		return Status{}, false, nil
	}

	status, err = v.judge(agents)
	if err != nil || status.State != Ready {
		// A missing object may keep the agent from answering.
		return status, false, err
	}
	return v.last.exclusions.judge(status), true, nil
}

// haveMark reports whether the objects have the mark of this installer. The generation of an
// object stays the same when only its mark changes.
func (i *Installer) haveMark(objects ...*unstructured.Unstructured) bool {
	return !slices.ContainsFunc(objects, func(object *unstructured.Unstructured) bool {
		return object != nil && i.ownerOf(object) != i.owner()
	})
}

// loadRecord reports whether there is a recent record, of the same parameters.
func (v *visit) loadRecord() bool {
	known, _ := v.records.Load(v.id)
	last, ok := known.(record)
	if !ok {
		return false
	}
	v.last = last
	isRecent := v.opts.Now().Sub(last.at) < verifyAfter
	isSameSecret := v.runtime.Secret == nil || last.secret == sumOf(v.runtime.Secret)
	return isRecent && isSameSecret && last.parameters == v.parametersOf(v.runtime)
}

func (v *visit) readAgain(ctx context.Context) (marker *unstructured.Unstructured, live agents, err error) {
	// One request opens the connection that the others share.
	if err := v.getInto(ctx, v.marker(), &marker)(); err != nil {
		return nil, agents{}, err
	}
	err = together(v.getInto(ctx, v.object(deploymentFile), &live.deployment), v.slicesInto(ctx, &live.slices))
	return marker, live, err
}

// marker makes the agents see changes, has their owner, and a name that is unique there.
func (i *Installer) marker() *unstructured.Unstructured {
	if i.opts.Informer {
		return i.object(roleFile)
	}
	return i.bareConfiguration()
}
