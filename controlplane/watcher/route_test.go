package watcher

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// failing is an API server that answers every read with the same error.
type failing struct {
	client.Reader

	err error
}

func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.err
}

// A control plane may have, or allow, one kind of routes only.
func TestRoutesOfAnotherKindNeedNotBeReadable(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
	away := errors.New("the API server is away")
	for name, test := range map[string]struct{ answer, want error }{
		"not found":     {apierrors.NewNotFound(resource, "kyma"), nil},
		"not installed": {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: resource.Group, Kind: "HTTPRoute"}}, nil},
		"not allowed":   {apierrors.NewForbidden(resource, "kyma", errors.New("no rule")), nil},
		"another error": {away, away},
	} {
		r := &reconciler{fresh: failing{err: test.answer}, routing: virtualServices{}}
		err := r.removeOthers(t.Context(), types.NamespacedName{Namespace: "kcp-system", Name: "kyma"})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}
