package follow

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func named(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "a/" + "b x", ResourceVersion: version}}
}

// What happened while no watch ran is found by the next list, and the first list is no change.
func TestChangesAreReportedOnce(t *testing.T) {
	var changes []string
	objects := New(schema.GroupVersionKind{}, ResourceVersion)
	s := store{objects, func(name, _ string) { changes = append(changes, name) }}
	want := func(names ...string) {
		t.Helper()
		slices.Sort(changes)
		if diff := cmp.Diff(names, changes); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		changes = nil
	}
	_ = s.Replace([]any{named("same", "1"), named("changes", "1"), named("goes", "1")}, "")
	want()
	_ = s.Replace([]any{named("same", "1"), named("changes", "2"), named("comes", "3")}, "")
	want("changes", "comes", "goes")
	_ = s.Update(named("same", "1"))
	want()
	_ = s.Update(named("same", "2"))
	_ = s.Add(named("new", "3"))
	_ = s.Delete(named("comes", "4"))
	want("comes", "new", "same")
	if have := objects.Version("comes"); have != "" {
		t.Errorf("an object that is gone has the version %q", have)
	}
	var owners []types.NamespacedName
	owned := Owned(func(owner types.NamespacedName) { owners = append(owners, owner) })
	owned("new", objects.Version("new"))
	owned("gone", objects.Version("gone"))
	owned("none", "a/ x")
	if want := []types.NamespacedName{{Namespace: "a", Name: "b"}}; !slices.Equal(owners, want) {
		t.Errorf("owners %v, want %v", owners, want)
	}
}
