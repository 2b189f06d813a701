package installation

import (
	"cmp"
	"flag"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
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
func oneOfTwoInstallersWins(w *world) {
	for name, test := range map[string]struct {
		prepare func(*race)
		adopt   bool
	}{
		"unowned":           {func(r *race) { r.setOwner("") }, true},
		"without-configmap": {func(r *race) { r.setOwner(""); r.remove("ConfigMap") }, true},
		"of-a-former-owner": {func(r *race) { r.setOwner("former") }, false},
		"nothing":           {func(r *race) { r.remove("") }, false},
	} {
		prepare := test.prepare
		w.t.Run(name, func(t *testing.T) {
			r := &race{world: newWorld(t, w.plane, "race-"+name), installers: map[string]*installation.Installer{}}
			r.createNamespace()
			r.installed()
			if test.adopt {
				for _, object := range r.objects() {
					r.opts.Adopt = append(r.opts.Adopt, object.GetKind()+"/"+object.GetName())
				}
			}
			for _, owner := range []string{"first", "second"} {
				opts := r.opts
				opts.Owner = owner
				opts.FormerOwners = []string{"former"}
				r.installers[owner] = rig.Must(installation.New(installation.Parts{Image: "agent.example.com/agent:" + owner, ControlPlane: owner + ".example.com:443"}, opts))
			}
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
			// The next call of the second one finds the owner.
			case core.ReasonOf(err) == "owned", apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
				refused.Add(1)
			case err != nil:
				r.t.Errorf("%s: got %v, want no other error than that it is refused", owner, err)
			}
		})
	}
	running.Wait()
	rig.Same(r.t, "refused installers", 1, int(refused.Load()))
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
		case core.ReasonOf(err) != "owned":
			r.t.Errorf("%s: got %v, beside %q", owner, err, winner)
		}
	}
	if winner == "" {
		r.t.Fatal("both installers are refused")
	}
	r.answer(1)
	r.is(rig.Must(r.installers[winner].Install(r.t.Context(), r.runtime)), installation.Ready)
	for _, object := range r.objects() {
		rig.Same(r.t, "owner of "+object.GetKind()+" "+object.GetName(), winner, object.GetAnnotations()[ownerLabel])
	}
	return winner
}

// setOwner gives all objects an owner, or none.
func (r *race) setOwner(owner string) {
	r.t.Helper()
	for _, object := range r.objects() {
		before := object.DeepCopy()
		annotations := map[string]string{}
		maps.Copy(annotations, object.GetAnnotations())
		annotations[ownerLabel] = owner
		if owner == "" {
			delete(annotations, ownerLabel)
		}
		object.SetAnnotations(annotations)
		rig.NoError(r.t, r.client.Patch(r.t.Context(), &object, client.MergeFrom(before)))
	}
}

// remove removes the objects of a kind, or all of them.
func (r *race) remove(kind string) {
	r.t.Helper()
	for _, object := range r.objects() {
		if kind == "" || object.GetKind() == kind {
			rig.NoError(r.t, client.IgnoreNotFound(r.client.Delete(r.t.Context(), &object)))
		}
	}
}

// theSecondInstallerIsRefused, also in another namespace: webhook configuration and role have one
// name in a runtime. So is a webhook beside an informer.
func theSecondInstallerIsRefused(w *world) {
	for name, test := range map[string]struct {
		first, second bool // whether they install informers
		namespace     string
	}{
		"same-names":              {false, false, "same-names"},
		"same-configuration":      {false, false, "default"},
		"two-informers":           {true, true, "default"},
		"webhook-beside-informer": {true, false, "default"},
	} {
		w.t.Run(name, func(t *testing.T) {
			first := newWorld(t, w.plane, name)
			first.opts.Informer = test.first
			first.keep()
			before, role := first.versions(), first.role()
			opts := first.opts
			opts.Owner = "second"
			opts.Informer = test.second
			opts.Namespace = test.namespace
			if opts.Namespace != name {
				opts.Name = "second"
			}
			second := rig.Must(installation.New(installation.Parts{Image: "agent.example.com/agent:v2", ControlPlane: "other.example.com:443"}, opts))
			r := first.runtime
			r.Secret = newSecretFor(t, name, cmp.Or(opts.Name, installation.Name), opts.Namespace)
			r.Watches = []watch.Watch{watchFor("other")}
			for range 2 {
				if _, err := second.Install(t.Context(), r); core.ReasonOf(err) != "owned" || core.IsPermanent(err) {
					t.Errorf("got %v, want it refused", err)
				}
				first.is(first.install(), installation.Ready)
			}
			// Nothing is left to remove.
			first.is(rig.Must(second.Uninstall(t.Context(), r)), installation.Removed)
			rig.Same(t, "the second one has changed", before, first.versions())
			rig.Same(t, "there are rights", role != nil, first.role() != nil)
		})
	}
}
