package installation

import (
	"crypto/sha256"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// record describes the objects after a complete installation. The visit that has completed the
// installation makes it, and later visits compare it with the objects.
type record struct {
	// parameters and secret change with the parameters of the objects to apply. Of the keys in the
	// Secret there is the sum only.
	parameters, secret [sha256.Size]byte
	whole              string    // the value of annotationWhole, empty with an informer
	at                 time.Time // of the completion, zero after outdate
	marker, deployment objectVersion
	exclusions         exclusions
}

// objectVersion changes with each change of the spec of an object.
type objectVersion [sha256.Size]byte

func versionOf(object *unstructured.Unstructured) objectVersion {
	if object == nil {
		return objectVersion{}
	}

	version := object.GetResourceVersion() // Objects of RBAC have no generation.
	generation := object.GetGeneration()
	if generation != 0 {
		version = strconv.FormatInt(generation, 10)
	}
	return remote.Sum(string(object.GetUID()), version)
}

// records have the last complete installation of each runtime.
type records struct {
	perRuntime[record]
}

// outdate makes the next call of Install apply all objects. The rest of the record is kept: if this
// call fails, the next call can still detect that others have replaced the configuration.
func (r *records) outdate(id core.RuntimeID) {
	last, known := r.load(id)
	if !known {
		return
	}

	last.at = time.Time{}
	r.store(id, last)
}
