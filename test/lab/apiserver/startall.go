package apiserver

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// StartT is [Start] for a test: a failure ends the test, and the control plane stops when the test
// and its subtests are over. It may build the binaries first, so a test run that wants to see the
// progress builds them beforehand.
func StartT(t testing.TB, opts Options) *ControlPlane {
	t.Helper()
	return StartAllT(t, opts)[0]
}

// StartAllT is [StartAll] for a test.
func StartAllT(t testing.TB, all ...Options) []*ControlPlane {
	t.Helper()
	// The first call counts. Without any, controller-runtime logs a stack trace.
	log.SetLogger(logr.Discard())
	planes, stop, err := StartAll(t.Context(), all)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return planes
}

// atOnce is the number of control planes that start at the same time.
const atOnce = 3

// StartAll starts control planes concurrently, and returns them in the order of their options. The
// caller must call stop, also after an error.
func StartAll(ctx context.Context, all []Options) (planes []*ControlPlane, stop func() error, err error) {
	planes = make([]*ControlPlane, len(all))
	var starts errgroup.Group
	starts.SetLimit(atOnce)
	for i := range all {
		starts.Go(func() (err error) {
			planes[i], err = Start(ctx, all[i])
			return err
		})
	}
	return planes, func() error {
		var stops errgroup.Group
		for _, plane := range planes {
			if plane != nil {
				stops.Go(plane.Stop)
			}
		}
		return stops.Wait()
	}, starts.Wait()
}
