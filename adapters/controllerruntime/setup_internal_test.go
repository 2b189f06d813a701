package controllerruntime

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A source that no controller starts is reported again and again, until one does.
func TestWarnUntilStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var started atomic.Bool
		ready := func() error {
			if started.Load() {
				return nil
			}
			return errors.New("no controller")
		}
		ended := make(chan error, 1)
		go func() {
			ended <- warnUntilStarted(context.Background(), ready, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		time.Sleep(2*notStarted + time.Second)
		started.Store(true)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(out.String(), "WatchesRawSource"); n != 2 {
			t.Errorf("%d warnings, want 2:\n%s", n, &out)
		}
	})
}
