package installation

import (
	"flag"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var rounds = flag.Int("rounds", 3, "how often two installers race")

const ownerLabel = "operator.kyma-project.io/installed-by"

// race is a runtime that two installers want. Both begin in each round.
type race struct {
	*world

	installers map[string]*installation.Installer // by owner
}

// oneOfTwoInstallersWins lets two installers begin at the same time, over objects that both may
// take. Each object is then of the same installer.
func oneOfTwoInstallersWins(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	for name, prepare := range map[string]func(*race){
		"unowned":           func(r *race) { r.setOwner("") },
		"without ConfigMap": func(r *race) { r.setOwner(""); r.removeManagers() },
		"of a former owner": func(r *race) { r.setOwner("former") },
		"nothing":           func(r *race) { r.removeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRace(t, plane, "race-"+strings.ToLower(strings.ReplaceAll(name, " ", "-")))
			wins := map[string]int{}
			for range *rounds {
				prepare(r)
				r.begin()
				wins[r.winner()]++
				if t.Failed() {
					return
				}
			}
			t.Log("wins:", wins)
		})
	}
}

func newRace(t *testing.T, plane *apiserver.ControlPlane, name string) *race {
	t.Helper()
	r := &race{world: newWorld(t, plane, name), installers: map[string]*installation.Installer{}}
	r.createNamespace()
	r.installed()
	for _, owner := range []string{"first", "second"} {
		opts := r.opts
		opts.Owner, opts.FormerOwners = owner, []string{"former"}
		installer := rig.Must(installation.New("agent.example.com/agent:"+owner, owner+".example.com:443", opts))
		r.installers[owner] = installer
	}
	return r
}

// begin calls both installers at the same time. One of them must be refused.
func (r *race) begin() {
	r.t.Helper()
	var (
		running sync.WaitGroup
		refused atomic.Int32
	)
	for owner, installer := range r.installers {
		running.Go(func() {
			_, err := installer.Install(r.t.Context(), r.runtime)
			switch {
			case core.Reason(err) == "owned":
				refused.Add(1)
			case err != nil:
				r.t.Errorf("%s: got %v, want no other error than that it is refused", owner, err)
			}
		})
	}
	running.Wait()
	if n := refused.Load(); n != 1 {
		r.t.Errorf("%d of two installers are refused, want 1", n)
	}
}

// winner wants one installer to be ready and the other one to be refused, and returns the former.
func (r *race) winner() (winner string) {
	r.t.Helper()
	r.answer(1)
	for owner, installer := range r.installers {
		_, err := installer.Install(r.t.Context(), r.runtime)
		switch {
		case err == nil && winner == "":
			winner = owner
		case core.Reason(err) != "owned":
			r.t.Errorf("%s: got %v, beside %q", owner, err, winner)
		}
	}
	if winner == "" {
		r.t.Fatal("both installers are refused")
	}
	r.answer(1)
	if status, err := r.installers[winner].Install(r.t.Context(), r.runtime); err != nil ||
		status.State != installation.Ready {
		r.t.Errorf("%s: got %+v, %v, want it ready", winner, status, err)
	}
	for _, object := range r.objects() {
		if owner := object.GetAnnotations()[ownerLabel]; owner != winner {
			r.t.Errorf("%s %s is of %q, want %q", object.GetKind(), object.GetName(), owner, winner)
		}
	}
	return winner
}

// objects returns all objects of the installation, with the webhook configuration.
func (r *race) objects() []unstructured.Unstructured {
	r.t.Helper()
	return slices.DeleteFunc(listed(r.t, r.client), func(o unstructured.Unstructured) bool {
		return o.GetNamespace() != r.namespace && o.GetName() != r.opts.ConfigurationName
	})
}

// setOwner gives all objects an owner, or none.
func (r *race) setOwner(owner string) {
	r.t.Helper()
	for _, object := range r.objects() {
		before := object.DeepCopy()
		annotations := object.GetAnnotations()
		annotations[ownerLabel] = owner
		if owner == "" {
			delete(annotations, ownerLabel)
		}
		object.SetAnnotations(annotations)
		rig.NoError(r.t, r.client.Patch(r.t.Context(), &object, client.MergeFrom(before)))
	}
}

func (r *race) removeManagers() {
	r.t.Helper()
	managers := &corev1.ConfigMap{}
	r.get(installation.Name+"-managers", managers)
	rig.NoError(r.t, r.client.Delete(r.t.Context(), managers))
}

func (r *race) removeAll() {
	r.t.Helper()
	for _, object := range r.objects() {
		if err := r.client.Delete(r.t.Context(), &object); err != nil && !apierrors.IsNotFound(err) {
			r.t.Fatal(err)
		}
	}
}
