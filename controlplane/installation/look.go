package installation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// The objects to apply, and facts about those that are there.
type wanted struct {
	configuration *unstructured.Unstructured   // nil with an informer
	managers      *unstructured.Unstructured   // early, too
	early, late   []*unstructured.Unstructured // The late ones need early ones.
	deployment    *unstructured.Unstructured   // as late
	whole         bool                         // no webhook of the configuration waits for the agent
	missed        bool                         // others have changed webhooks
	waits         bool                         // a restart of the agents is due later
	seen          look                         // without the objects that are there
}

// look is the record of a complete installation. It is lost at a restart of the process.
type look struct {
	// parameters and secret change with the parameters of the objects to apply. Of the keys in the
	// Secret there is the sum only.
	parameters, secret [sha256.Size]byte
	whole              string // the value of annotationWhole, empty with an informer
	at                 time.Time
	marker, deployment mark
}

// parametersOf has all that the objects are made of, except the options and the Secret.
func (i *Installer) parametersOf(r *Runtime) [sha256.Size]byte {
	return sumOf(watch.DocumentOf(r.Watches), i.addressFor(r), r.PullSecret)
}

// ownNamespace means that this package has made, or makes, the namespace.
func (i *Installer) wanted(r *Runtime, ownNamespace bool) (*wanted, error) {
	w := &wanted{seen: look{parameters: i.parametersOf(r), secret: sumOf(r.Secret)}}
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

// mark changes with each change of the spec of an object.
type mark [sha256.Size]byte

func markOf(object *unstructured.Unstructured) mark {
	if object == nil {
		return mark{}
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
func (i *Installer) outdate(id core.RuntimeID) look {
	found, _ := i.looks.Load(id)
	last, known := found.(look)
	if known {
		last.at = time.Time{}
		i.looks.Store(id, last)
	}
	return last
}

// glance reads the objects that watching depends on, and reports whether they need no correction:
// the last complete installation is recent, and neither its parameters nor these objects have
// changed. A nil Secret counts as unchanged.
func (i *Installer) glance(ctx context.Context, in *cluster, r *Runtime) (status Status, unchanged bool, err error) {
	found, _ := i.looks.Load(r.ID)
	last, known := found.(look)
	if !known || i.opts.Now().Sub(last.at) >= verifyAfter || last.parameters != i.parametersOf(r) ||
		r.Secret != nil && last.secret != sumOf(r.Secret) {
		return Status{}, false, nil
	}
	marker, agents, err := i.readAgain(ctx, in)
	if err == nil {
		err = i.checkOwner(in, marker, agents.deployment)
	}
	if err != nil || markOf(marker) != last.marker || markOf(agents.deployment) != last.deployment {
		return Status{}, false, err
	}
	status, err = i.judge(in, agents)
	// A missing object may keep the agent from answering.
	return status, status.State == Ready, err
}

func (i *Installer) readAgain(
	ctx context.Context, in *cluster,
) (marker *unstructured.Unstructured, live agents, err error) {
	// One request opens the connection that the others share.
	if err := in.getInto(ctx, i.marker(), &marker)(); err != nil {
		return nil, agents{}, err
	}
	err = together(in.getInto(ctx, i.object(deploymentFile), &live.deployment), i.slicesInto(ctx, in, &live.slices))
	return marker, live, err
}

// marker makes the agents see changes, has their owner, and a name that is unique there.
func (i *Installer) marker() *unstructured.Unstructured {
	if i.opts.Informer {
		return i.object(roleFile)
	}
	return i.bareConfiguration()
}
