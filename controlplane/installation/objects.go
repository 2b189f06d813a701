package installation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// fieldOwner is the field manager of all installers of this package.
const fieldOwner = "runtime-watcher-installation"

// identity distinguishes the objects of one installation. They are in one namespace, or they are
// cluster-scoped.
type identity struct{ kind, name string }

func identityOf(object client.Object) identity {
	return identity{kind: kindOf(object), name: object.GetName()}
}

func kindOf(object client.Object) string { return object.GetObjectKind().GroupVersionKind().Kind }

// named returns an object without content.
func named(version, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(version)
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func annotate(object *unstructured.Unstructured, name, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[name] = value
	object.SetAnnotations(annotations)
}

// editAs changes an object as its type. It panics if a manifest of this build has another type.
func editAs(object *unstructured.Unstructured, typed any, change func()) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		panic(fmt.Sprintf("manifest of %s of this build: %v", object.GetKind(), err))
	}

	change()
	object.Object = contentOf(typed)
}

// contentOf converts an object of k8s.io/api to a map without its status.
func contentOf(typed any) map[string]any {
	fields, err := serverside.Content(typed)
	if err != nil {
		panic(fmt.Sprintf("k8s.io/api: %v", err)) // All of its types can be converted.
	}
	return fields
}

// sumOf hashes values. The keys of maps are in order.
func sumOf(values ...any) [sha256.Size]byte {
	text, err := json.Marshal(values)
	if err != nil {
		panic(fmt.Sprintf("objects of this build: %v", err)) // All of them are JSON.
	}
	return sha256.Sum256(text)
}

// shortSum is for annotations.
func shortSum(sum [sha256.Size]byte) string {
	const digits = 10
	return hex.EncodeToString(sum[:])[:digits]
}
