package controllerruntime_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
)

// answersOfServer are the answers of an API server to each Apply. The last one stays.
type answersOfServer struct {
	client.Writer

	answers []error
	calls   int
}

func (a *answersOfServer) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	err := a.answers[min(a.calls, len(a.answers)-1)]
	a.calls++
	if slice, ok := object.(*discoveryv1ac.EndpointSliceApplyConfiguration); ok && err == nil {
		slice.WithResourceVersion("1")
	}
	return err
}

// An API server that has just started may forbid what it allows soon after. That must not end an
// operator that leads.
func TestLeaderEndpointOutlastsRefusals(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "my-operator-leader", nil)
	synctest.Test(t, func(t *testing.T) {
		server := &answersOfServer{answers: []error{nil, forbidden, nil}}
		endpoint, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
			"192.0.2.1", map[string]int32{"events": 8082}, controllerruntime.LeaderEndpointOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := endpoint.Start(ctx); err != nil {
			t.Errorf("Start returns %v, want it to try again", err)
		}
		if ctx.Err() == nil || server.calls < 3 {
			t.Errorf("Start ended after %d writes", server.calls)
		}
	})
}
