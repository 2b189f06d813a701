package certificates

import (
	"context"
	"net/http"
	"testing"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A proxy between the controller and the API server may answer 404 with a page. Such an answer says
// nothing about the object, so the keys of a runtime are not taken for deleted.
func TestAPageOfAProxyIsNoDeletion(t *testing.T) {
	t.Parallel()

	certificates := schema.GroupResource{Group: certv1.SchemeGroupVersion.Group, Resource: "certificates"}
	name := objectName(shared, clientSuffix)
	tests := map[string]struct {
		answer error
		fails  bool
	}{
		"the object has gone": {apierrors.NewNotFound(certificates, name), false},
		"a page of a proxy": {
			apierrors.NewGenericServerResponse(http.StatusNotFound, "delete", certificates, name, "<html>", 0, true), true,
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			plane := newPlane(t, new([]types.UID), certificateFor("watcher", shared), keyOf("watcher"))
			c := interceptor.NewClient(plane, interceptor.Funcs{
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
					return test.answer
				},
			})

			err := newSet(t, c, "watcher").RemoveRuntime(t.Context(), Runtime{ID: shared})
			if (err != nil) != test.fails {
				t.Errorf("error %v, want an error: %v", err, test.fails)
			}
		})
	}
}
