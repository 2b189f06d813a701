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

	answers          []error
	takes            time.Duration
	calls, endpoints int
}

func (a *answersOfServer) Apply(ctx context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	err := a.answers[min(a.calls, len(a.answers)-1)]
	a.calls++
	if slice, ok := object.(*discoveryv1ac.EndpointSliceApplyConfiguration); ok && err == nil {
		a.endpoints = len(slice.WithResourceVersion("1").Endpoints)
	}
	select {
	case <-time.After(a.takes):
		return err
	case <-ctx.Done():
		return ctx.Err() // It is written.
	}
}

// An API server that has just started may forbid what it allows soon after. That must not end an
// operator that leads. An endpoint is removed, also if it was being written when the operator ended.
func TestLeaderEndpointOutlastsRefusals(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "my-operator-leader", nil)
	for leads, server := range map[time.Duration]*answersOfServer{
		time.Minute: {answers: []error{nil, forbidden, nil}}, time.Second: {answers: []error{nil}, takes: 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			endpoint, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
				"192.0.2.1", map[string]int32{"events": 8082}, controllerruntime.LeaderEndpointOptions{})
			check(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), leads)
			defer cancel()
			if err := endpoint.Start(ctx); err != nil {
				t.Errorf("Start returns %v, want it to try again", err)
			}
			if ctx.Err() == nil || server.calls < len(server.answers) || server.endpoints > 0 {
				t.Errorf("Start ended after %d writes with %d endpoints, want none", server.calls, server.endpoints)
			}
		})
	}
}
