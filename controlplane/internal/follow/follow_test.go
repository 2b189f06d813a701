package follow

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func named(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "kcp", Name: name, UID: "a/" + "b x", ResourceVersion: version,
	}}
}

// server lists and watches what a test says.
type server struct {
	client.WithWatch

	objects []*metav1.PartialObjectMetadata
	events  *watch.FakeWatcher
}

func newServer(objects ...*metav1.PartialObjectMetadata) *server {
	s := &server{objects: objects}
	s.WithWatch = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, into client.ObjectList, _ ...client.ListOption) error {
			list, _ := into.(*metav1.PartialObjectMetadataList)
			for _, object := range s.objects {
				list.Items = append(list.Items, *object)
			}

			list.ResourceVersion = "1"
			return nil
		},
		Watch: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			var asked client.ListOptions
			asked.ApplyOptions(opts)
			if asked.Raw.SendInitialEvents != nil { // As an older API server.
				return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
			}

			s.events = watch.NewFake()
			return s.events, nil
		},
	})

	return s
}

// relist ends the watch as one that is too old, so that a list follows.
func (s *server) relist(objects ...*metav1.PartialObjectMetadata) {
	s.objects = objects
	s.events.Error(&apierrors.NewResourceExpired("").ErrStatus)
	time.Sleep(time.Minute)
}

// What happened while no watch ran is found by the next list, and the first list is no change.
func TestChangesAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		objects := New(schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, ResourceVersion)
		s := newServer(named("same", "1"), named("changes", "1"), named("goes", "1"))
		if have := objects.Version("same"); have != "" {
			t.Errorf("before Run, the version is %q", have)
		}

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			objects.Run(ctx, s, func(name, _ string) { changes = append(changes, name) })
		}()

		want := func(names ...string) {
			t.Helper()

			synctest.Wait()
			slices.Sort(changes)

			if diff := cmp.Diff(names, changes); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}

			changes = nil
		}

		want()
		s.relist(named("same", "1"), named("changes", "2"), named("comes", "3"))
		want("changes", "comes", "goes")
		s.events.Modify(named("same", "1"))
		want()
		s.events.Modify(named("same", "2"))
		s.events.Add(named("new", "3"))
		s.events.Delete(named("comes", "4"))
		want("comes", "new", "same")

		for name, version := range map[string]string{"comes": "", "same": "a/b x/2"} {
			if have := objects.Version(name); have != version {
				t.Errorf("%s has the version %q, want %q", name, have, version)
			}
		}

		stop()
		<-ended
	})
}

func TestTheOwnerOfAVersion(t *testing.T) {
	var owners []types.NamespacedName
	owned := Owned(func(owner types.NamespacedName) { owners = append(owners, owner) })

	for _, version := range []string{"a/b x/3", "", "a/ x"} {
		owned("name", version)
	}

	if want := []types.NamespacedName{{Namespace: "a", Name: "b"}}; !slices.Equal(owners, want) {
		t.Errorf("owners %v, want %v", owners, want)
	}
}
