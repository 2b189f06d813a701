package installation

import (
	"crypto/sha256"
	"maps"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// record describes the objects after a complete installation. The visit that has completed the
// installation makes it, and later visits compare it with the objects.
type record struct {
	// parameters and secret change with the parameters of the objects to apply. Of the keys in the
	// Secret there is the sum only.
	parameters, secret [sha256.Size]byte
	whole              string    // the value of annotationWhole, empty with an informer
	at                 time.Time // of the completion, zero after outdateRecord
	marker, deployment objectVersion
	exclusions         exclusions
}

// objectVersion changes with each change to the content of an object. The generation alone is not
// enough: after the restore of a backup, the next change gives an older object the same generation.
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
	return sumOf(object.GetUID(), version, bareContent(object))
}

// bareContent returns an object without its metadata and its status, which others change.
func bareContent(object *unstructured.Unstructured) map[string]any {
	content := maps.Clone(object.Object)
	delete(content, "metadata")
	delete(content, "status")
	return content
}

// records contain the last complete installation of each runtime.
type records struct {
	perRuntime[record]
}

// outdateRecord makes the next call of Install apply all objects. The rest of the record is kept:
// if this call fails, the next call can still detect that others have replaced the configuration.
func (r *records) outdateRecord(id core.RuntimeID) {
	last, known := r.load(id)
	if !known {
		return
	}

	last.at = time.Time{}
	r.store(id, last)
}
