package lab

import (
	"context"
	"sync"
	"testing"
)

// Run calls start until stop, or until the end of the test. The test fails if start returns an
// error. stop waits for the end of start, and may be called again.
func Run(t testing.TB, name string, start func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := start(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}
