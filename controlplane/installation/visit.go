package installation

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// visit is one call of the installer for one runtime: the present objects, the planned ones, and
// the last record. It belongs to the goroutine of that call, and its tasks in parallel read it
// only.
type visit struct {
	writer    // reads and writes the objects of the runtime
	*renderer // makes the objects to apply

	memory *memory // of the installer
	last   record  // of the last complete installation, the zero value if there is none
	found  found   // set by readFound and readOthers
	want   *wanted // set by planObjects
	// former are the managers that the ConfigMap has, and the runtime does not have any more.
	former []core.Manager
}

func (i *Installer) newVisit(r *Runtime) *visit {
	v := &visit{memory: &i.memory, renderer: i.rendererOf(r)}
	v.cluster = &cluster{
		Client: r.Client, id: r.ID, log: i.opts.Logger.With(slog.String("runtime", string(r.ID))),
	}
	v.rights = rights{marks: v.marks, id: r.ID, found: &v.found}
	return v
}

// readFound reads the four objects that decide about the runtime. The first request opens the
// connection that all further requests share.
func (v *visit) readFound(ctx context.Context) error {
	if err := v.readingObject(ctx, v.opts.bareConfiguration(), &v.found.configuration)(); err != nil {
		return err
	}
	return together(
		v.readingObject(ctx, v.renderNamespace(), &v.found.namespace),
		v.readingObject(ctx, v.bareManagers(), &v.found.managers),
		v.readingObject(ctx, v.manifests.copyOf(roleFile), &v.found.role),
	)
}

// readOthers reads the metadata of the planned objects. Their content may be foreign, and does not
// matter.
func (v *visit) readOthers(ctx context.Context) error {
	objects := v.want.appliedObjects()
	read := make([]*metav1.PartialObjectMetadata, len(objects))
	tasks := make([]func() error, len(objects))
	for n, object := range objects {
		tasks[n] = func() (err error) {
			if v.found.wholeOf(object) != nil {
				return nil
			}
			read[n], err = v.readMetadata(ctx, object)
			return err
		}
	}
	if err := together(tasks...); err != nil {
		return err
	}

	v.found.others = make(map[identity]*metav1.PartialObjectMetadata)
	for n, object := range objects {
		if read[n] != nil {
			v.found.others[identityOf(object)] = read[n]
		}
	}
	return nil
}

// formerManagers are the managers in the ConfigMap that the runtime no longer has.
func (v *visit) formerManagers() []core.Manager {
	live := v.found.managers
	if live == nil {
		return nil
	}

	text, _, _ := unstructured.NestedString(live.Object, "data", managersKey)
	now := v.opts.managersOf(v.runtime.Watches)
	isCurrent := func(m core.Manager) bool { return slices.Contains(now, m) }
	return slices.DeleteFunc(remote.Managers(strings.FieldsSeq(text)), isCurrent)
}

// formerPullSecret is the copy that an earlier visit has made, none without the annotation.
func (v *visit) formerPullSecret() []*unstructured.Unstructured {
	live := v.found.managers
	if live == nil || live.GetAnnotations()[v.opts.key(annotationPullSecret)] == "" {
		return nil
	}
	return []*unstructured.Unstructured{v.barePullSecret()}
}

// ownsOrMakesNamespace reports whether this installer has created the namespace, or is about to.
func (v *visit) ownsOrMakesNamespace() bool {
	if v.found.namespace == nil {
		return v.isCreated(v.renderNamespace())
	}
	return v.rights.ownsNamespace()
}
