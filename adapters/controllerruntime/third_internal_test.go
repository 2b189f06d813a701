package controllerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// refusing is a client with one error for dry runs, and one for writes.
type refusing struct {
	client.Writer

	probe, write error
	calls        int
}

func (r *refusing) Apply(_ context.Context, _ runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	r.calls++
	if options := (&client.ApplyOptions{}).ApplyOptions(opts); len(options.DryRun) > 0 {
		return r.probe
	}
	return r.write
}

// The first write fails in each way. The Runnable ends with the errors that last, and tries again
// after the others. After a success, it ends with none.
func TestTheFirstWriteOfALeaderEndpoint(t *testing.T) {
	t.Parallel()

	of := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	forbidden := apierrors.NewForbidden(of, "listener-leader", errors.New("no right"))
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: of.Group, Kind: "EndpointSlice"}, "listener-leader", nil)
	conflict := apierrors.NewConflict(of, "listener-leader", errors.New("another client has the field"))
	busy := apierrors.NewTooManyRequests("busy", 1)

	for name, tt := range map[string]struct {
		probe, write error
		lasts        bool
	}{
		"a probe that is forbidden":          {forbidden, nil, true},
		"a write that is forbidden":          {nil, forbidden, true},
		"an invalid slice":                   {nil, invalid, true},
		"a namespace that is not there":      {apierrors.NewNotFound(of, "kcp"), nil, true},
		"a slice of another operator":        {fmt.Errorf("probe: %w", errForeignSlice), nil, true},
		"a mark of another client":           {conflict, nil, true},
		"an API server that is busy":         {busy, nil, false},
		"a busy API server after the probe":  {nil, busy, false},
		"a slice that was created meanwhile": {nil, conflict, false},
		"nothing":                            {nil, nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			writer := &refusing{probe: tt.probe, write: tt.write}
			endpoint, err := NewLeaderEndpoint(writer, types.NamespacedName{Namespace: "kcp", Name: "listener"},
				ReplicaEndpoint{Operator: "operator", Address: "192.0.2.1", Ports: map[string]int32{"": 8443}},
				LeaderEndpointOptions{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}

			ctx, cancel := context.WithTimeout(t.Context(), 3*leaderRetryWait)
			defer cancel()
			err = endpoint.Start(ctx)
			if ended := ctx.Err() == nil; ended != tt.lasts || (err != nil) != tt.lasts {
				t.Errorf("%s: ended by itself %t with the error %v, want it: %t", name, ended, err, tt.lasts)
			}
			if !tt.lasts && writer.calls < 2 {
				t.Errorf("%s: %d calls, want it to try again", name, writer.calls)
			}
		})
	}
}

// A receiver asks a source that no controller starts. The log says so once after 30 s, on a replica
// that leads, or may lead.
func TestASourceWithoutController(t *testing.T) {
	t.Parallel()

	closedNow := make(chan struct{})
	close(closedNow)
	for name, tt := range map[string]struct {
		elected <-chan struct{}
		want    string
	}{
		"Elected is not set":  {nil, "Elected is set"},
		"replica leads":       {closedNow, "pass the source to WatchesRawSource"},
		"another one leads":   {make(chan struct{}), ""},
		"has its controller":  {closedNow, ""},
		"was asked only once": {nil, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			source := NewSource(
				func(context.Context, core.Delivery) ([]string, error) { return nil, nil },
				SourceOptions{Elected: tt.elected, Logger: slog.New(slog.NewTextHandler(&log, nil))},
			)
			if name == "has its controller" {
				queue := priorityqueue.New[string]("")
				defer queue.ShutDown()
				if err := source.Start(t.Context(), queue); err != nil {
					t.Fatal(err)
				}
			}

			for range 4 {
				_ = source.Ready()
				if name == "was asked only once" {
					break
				}
				time.Sleep(notStarted / 2)
			}

			lines := strings.Count(log.String(), "\n")
			if (lines == 1) != (tt.want != "") || lines > 1 || !strings.Contains(log.String(), tt.want) {
				t.Errorf("%s: the log has %q, want %q once", name, log.String(), tt.want)
			}
		})
	}
}

// A heartbeat alone asks a source for its state. Without one, the log says that nothing has.
func TestASourceThatOnlyHeartbeatsAskFor(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			source := NewSource(
				func(context.Context, core.Delivery) ([]string, error) { return nil, nil },
				SourceOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))},
			)
			queue := priorityqueue.New[string]("")
			defer queue.ShutDown()
			if err := source.Start(t.Context(), queue); err != nil {
				t.Fatal(err)
			}

			if asked {
				_ = source.Ready()
			}

			time.Sleep(notStarted + time.Second)
			synctest.Wait()
			if isSilent := log.Len() == 0; isSilent != asked {
				t.Errorf("asked %t: the log has %q", asked, log.String())
			}
		})
	}
}

// A controller logs its source before and after the source has a listener.
func TestTheNameOfASource(t *testing.T) {
	t.Parallel()

	var none *Source[string]
	source := NewSource[string](nil, SourceOptions{})
	for _, s := range []*Source[string]{none, source} {
		if name := s.String(); name != "runtime watcher" {
			t.Errorf("a source without listener is %q", name)
		}
	}

	source.attached.Store(&attachment{manager: "alpha"})
	if name := source.String(); name != `runtime watcher, manager "alpha"` {
		t.Errorf("the source of a manager is %q", name)
	}
}

// Runtimes that resync and change nothing leave no entry for ever.
func TestResyncsAloneAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book reads[string]
		for _, runtime := range []core.RuntimeID{"a", "b", "c"} {
			book.endReads(runtime, &core.WatchEvent{Resync: true, Time: time.Now()})
			time.Sleep(readFor + awaitedFor)
		}

		if n := len(book.resynced); n != 1 {
			t.Errorf("the book has the resyncs of %d runtimes, want the last one", n)
		}
	})
}

// A request that should have been reconciled 30 s ago, to the nanosecond, is not missed yet.
func TestTheTimeOfAStray(t *testing.T) {
	t.Parallel()
	for waited, want := range map[time.Duration]bool{strayAfter: false, strayAfter + 1: true} {
		now := time.Unix(1e9, 0)
		s := strays[string]{used: true}
		for _, r := range []string{"a", "b", "c", "d"} {
			s.noteEnqueued(r, now)
		}

		if have := s.takeForeign(now.Add(waited)); have != want {
			t.Errorf("after %v, the source is in the wrong controller: %t, want %t", waited, have, want)
		}
	}
}
