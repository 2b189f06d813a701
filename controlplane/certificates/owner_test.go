package certificates

import (
	"errors"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func kyma(namespace string, uid types.UID) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kyma", UID: uid}}
}

// Two objects in two namespaces have the same runtime ID. The second one gets no key, and deletes
// none.
func TestARuntimeBelongsToOneObject(t *testing.T) {
	t.Parallel()
	var deleted []types.UID
	c := newPlane(t, &deleted)
	set := newSet(t, c, "watcher")
	first := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "first")}
	second := Runtime{ID: shared, Domain: "b.example.com", Owner: kyma("two", "second")}
	if _, err := set.EnsureRuntime(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := set.EnsureRuntime(t.Context(), second); !errors.Is(err, errRuntimeTaken) {
		t.Errorf("the second object: %v, want %v", err, errRuntimeTaken)
	}
	if _, err := set.EnsureRuntime(t.Context(), Runtime{ID: shared, Domain: "b.example.com"}); !errors.Is(err,
		errRuntimeTaken) {
		t.Errorf("without owner: %v, want %v", err, errRuntimeTaken)
	}
	wantOwner(t, set, first, true)
	wantOwner(t, set, second, false)
	if err := set.RemoveRuntime(t.Context(), second); err != nil || len(deleted) > 0 {
		t.Errorf("the second object has deleted %v: %v", deleted, err)
	}
	certificate := &certv1.Certificate{}
	if err := c.Get(t.Context(), set.key(objectName(shared, clientSuffix)), certificate); err != nil {
		t.Fatal(err)
	}
	if have := certificate.Spec.DNSNames; len(have) != 1 || have[0] != first.Domain {
		t.Errorf("the certificate is for %v, want the domain of the first object", have)
	}
	if err := set.RemoveRuntime(t.Context(), first); err != nil || len(deleted) != 2 {
		t.Errorf("the first object has deleted %v, want both certificates: %v", deleted, err)
	}
	wantOwner(t, set, second, true)
	if _, err := set.EnsureRuntime(t.Context(), second); err != nil {
		t.Errorf("the second object after the first one: %v", err)
	}
}

// An object that was created again, without a finalizer in between, must not be refused for ever.
func TestANamesakeTakesOver(t *testing.T) {
	t.Parallel()
	set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
	former := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "former")}
	next := Runtime{ID: shared, Domain: "a.example.com", Owner: kyma("one", "next")}
	for _, r := range []Runtime{former, next} {
		if _, err := set.EnsureRuntime(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	wantOwner(t, set, next, true)
	wantOwner(t, set, former, false)
}

func wantOwner(t *testing.T, set *Certificates, r Runtime, want bool) {
	t.Helper()
	if owned, err := set.OwnsRuntime(t.Context(), r); err != nil || owned != want {
		t.Errorf("owned by %s: %t, want %t: %v", ownerName(r.Owner), owned, want, err)
	}
}
