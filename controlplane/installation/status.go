package installation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unique"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

// State is the progress of an installation.
type State string

// The states of an installation.
const (
	// Progressing means that a step is awaited.
	Progressing State = "Progressing"
	// Ready means that every replica is of the newest Deployment, at least one answers, and the API
	// server calls it. With [Options.Informer], at least one watches.
	Ready State = "Ready"
	// Failed means that the installation needs a change. It is still retried.
	Failed State = "Failed"
	// Removed means that nothing is left.
	Removed State = "Removed"
)

// Status is the progress of an installation.
type Status struct {
	State State
	// Reason is a word in CamelCase, for a condition, and Message a sentence, unless the state is
	// Ready or Removed.
	Reason, Message string
	// Available is the number of replicas that answer, Replicas the number in the Deployment.
	Available, Replicas int32
	// Former are the managers that this call of Install has removed and that no watch names now.
	// They were those of webhooks, or of agents that watch. Each is reported once.
	Former []core.Manager
}

const (
	reasonNamespaceEnding    = "NamespaceEnding"
	reasonObjectsEnding      = "ObjectsEnding"
	reasonRolloutProgressing = "RolloutProgressing"
	reasonRolloutStalled     = "RolloutStalled"
	reasonServiceWithoutPods = "ServiceWithoutPods"
)

func progressing(reason, message string) Status {
	return Status{State: Progressing, Reason: reason, Message: message}
}

// agents are the Deployment, nil if there is none, and the EndpointSlices of the Service. An
// informer needs no endpoint, so that its slices are not read.
type agents struct {
	deployment *unstructured.Unstructured
	slices     *unstructured.UnstructuredList
}

// judge reports whether the newest Deployment is rolled out, and the Service has an endpoint or the
// agents watch.
func (i *Installer) judge(in *cluster, live agents) (Status, error) {
	if live.deployment == nil { // It was deleted a moment ago.
		return progressing(reasonRolloutProgressing, "waiting for the Deployment"), nil
	}
	var deployment appsv1.Deployment
	if err := in.decode(live.deployment, &deployment); err != nil {
		return Status{}, err
	}
	status := rollout(&deployment)
	if status.State != Ready || i.opts.Informer {
		return status, nil
	}
	reached, err := in.reached(live.slices)
	if err == nil && !reached {
		status.State, status.Reason = Progressing, reasonServiceWithoutPods
		status.Message = "waiting for an endpoint of Service " + i.opts.Name
	}
	return status, err
}

// rollout follows `kubectl rollout status`, except that one available replica is enough when all
// are updated, also if there is no room for another one.
func rollout(d *appsv1.Deployment) Status {
	s := Status{State: Progressing, Reason: reasonRolloutProgressing, Available: d.Status.AvailableReplicas, Replicas: 1}
	if d.Spec.Replicas != nil {
		s.Replicas = *d.Spec.Replicas
	}
	switch {
	case d.Status.ObservedGeneration < d.Generation:
		s.Message = "waiting for the controller of the Deployment"
	case s.Available > 0 && d.Status.UpdatedReplicas >= s.Replicas && d.Status.Replicas <= d.Status.UpdatedReplicas:
		s.State, s.Reason = Ready, ""
	case stalled(d) != "":
		s.State, s.Reason, s.Message = Failed, reasonRolloutStalled, stalled(d)
	case d.Status.UpdatedReplicas < s.Replicas:
		s.Message = fmt.Sprintf("waiting for the rollout: %d of %d replicas are updated",
			d.Status.UpdatedReplicas, s.Replicas)
	case d.Status.Replicas > d.Status.UpdatedReplicas:
		s.Message = fmt.Sprintf("waiting for the end of %d old replicas", d.Status.Replicas-d.Status.UpdatedReplicas)
	default:
		s.Message = fmt.Sprintf("waiting for a replica: none of %d is available", s.Replicas)
	}
	return s
}

// formerServe reports whether replicas of a former template answer, and the rollout may never end,
// as in a runtime without room for one more pod. They read a new list of managers while they run.
func (s Status) formerServe() bool { return s.Reason == reasonRolloutStalled && s.Available > 0 }

func stalled(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentProgressing && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the rollout makes no progress: %s: %s", condition.Reason, condition.Message)
		}
	}
	return ""
}

// slicesInto returns a task that lists the EndpointSlices of the Service, unless the agents watch.
func (i *Installer) slicesInto(
	ctx context.Context, in *cluster, into **unstructured.UnstructuredList,
) func() error {
	return func() error {
		if i.opts.Informer {
			return nil
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSliceList"))
		ofService := client.MatchingLabels{discoveryv1.LabelServiceName: i.opts.Name}
		err := in.List(ctx, list, client.InNamespace(i.opts.Namespace), ofService)
		*into = list
		return in.wrap(err, "list the EndpointSlices of Service", i.opts.Name)
	}
}

func (c *cluster) reached(list *unstructured.UnstructuredList) (bool, error) {
	for n := range list.Items {
		var slice discoveryv1.EndpointSlice
		err := c.decode(&list.Items[n], &slice)
		ready := slices.ContainsFunc(slice.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
			return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready // Nil means ready.
		})
		if ready || err != nil {
			return ready, err
		}
	}
	return false, nil
}

type facts struct {
	ownNamespace bool // this package has made, or makes, the namespace
	restart      string
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
	serving     bool // the Secret has a pair for the webhook
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
		annotate(w.whole, annotationWhole, shortSum(sumOf(w.whole)))
	}
	w.objects = i.objects(r, have)
	secret := maps.Clone(w.secret.Object)
	delete(secret, "data")
	w.digest = digest{
		sum:    sumOf(i.namespace(), w.whole, w.early, secret, w.late, w.deployment),
		secret: sumOf(w.secret.Object["data"]),
		bundle: unique.Make(string(r.Secret[material.CA])), serving: r.hasServingPair(),
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
