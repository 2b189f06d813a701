package operator_test

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestObjectsOfTheGuide compares the objects in embedding.md with the code above them, because a
// listener refuses events for another manager, and a domain in another annotation has no effect.
func TestObjectsOfTheGuide(t *testing.T) {
	t.Parallel()
	page := string(test.Read(t, "docs/guide/embedding.md"))
	block := regexp.MustCompile("(?s)<!-- objects: setUp -->\n```yaml\n(.*?)```").FindStringSubmatch(page)
	if block == nil {
		t.Fatal("the page has no objects for setUp")
	}
	first, second, _ := strings.Cut(block[1], "---\n")

	var cluster metav1.PartialObjectMetadata
	rig.NoError(t, yaml.UnmarshalStrict([]byte(first), &cluster))
	code := `Group: "` + cluster.GroupVersionKind().Group + `", Version: "` + cluster.GroupVersionKind().Version +
		`", Kind: "` + cluster.Kind + `"`
	rig.Says(t, "the code", page, code)
	if cluster.Annotations[controllerruntime.DomainAnnotation] == "" {
		t.Errorf("the object has the annotations %v, want %s", cluster.Annotations, controllerruntime.DomainAnnotation)
	}

	var watcher v1beta2.Watcher
	rig.NoError(t, yaml.UnmarshalStrict([]byte(second), &watcher))
	rig.Same(t, "the kind of the Watcher", names.Names{}.WithDefaults().GroupVersionKind(), watcher.GroupVersionKind())
	rig.Says(t, "the code", page, `SourceFor(events, "`+watcher.Spec.Manager+`", requests`)
}
