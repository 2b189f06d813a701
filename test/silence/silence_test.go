// Package silence sends forged reviews the whole way of an event: webhook, outbox, contract v3 and
// source. It is no part of adapters/controllerruntime, whose module must not need the webhook.
package silence

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

var kind = schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "K"}

// runtimeClient is the API server of a runtime with one object, o.
type runtimeClient struct {
	client.Client

	version string
}

func (runtimeClient) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return kind, nil
}

func (runtimeClient) RESTMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	resource := kind.GroupVersion().WithResource("ks")
	mapper.AddSpecific(kind, resource, kind.GroupVersion().WithResource("k"), meta.RESTScopeRoot)
	return mapper
}

func (c runtimeClient) Get(_ context.Context, name client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if name.Name != "o" {
		return apierrors.NewNotFound(schema.GroupResource{Group: "g", Resource: "ks"}, name.Name)
	}

	into.SetUID("u")
	into.SetResourceVersion(c.version)
	return nil
}

// A pod without a key names absent objects with the uid of o, or a deletion of o. Each later write
// of o must be reconciled nevertheless.
func TestForgedReviewsSilenceNothing(t *testing.T) {
	t.Parallel()

	for name, forged := range map[string][]string{
		"control":                       nil,
		"name of something absent":      {"optional", "UPDATE"},
		"deletion of something absent":  {"optional", "DELETE"},
		"deletion of the object itself": {"o", "DELETE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { silence(t, forged) })
		})
	}
}

func silence(t *testing.T, forged []string) {
	t.Helper()

	var reconciles atomic.Int64
	source := controllerruntime.NewSource(func(_ context.Context, d core.Delivery) ([]string, error) {
		return []string{string(d.Runtime)}, nil // One reconcile reads all objects of the runtime.
	}, controllerruntime.SourceOptions{Handled: func(h hook.Handled) {
		event := h.Delivery.Event
		if !event.Resync && event.Watched.Name == "o" && event.Operation == core.OperationUpdate && h.Err == nil {
			reconciles.Add(int64(h.Requests))
		}
	}})

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer queue.ShutDown()

	ctx, cancel := context.WithCancel(t.Context())
	if err := source.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}

	box, err := outbox.New(overTheWire(source), outbox.Options{Managers: []core.Manager{"kyma"}, Epoch: "e"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- box.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	webhook, err := admission.New(box, admission.Options{Serves: func(core.Manager) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}

	const writes = 5
	for base := 7; base < 7+writes; base++ {
		if forged != nil {
			review(t, webhook, forged[0], forged[1], 1)
		}
		pass(time.Second)

		reconcile(t, source, queue, base)

		before := reconciles.Load()
		review(t, webhook, "o", "UPDATE", base)
		pass(time.Second) // After the wait of the outbox, before its resend.
		if reconciles.Load() == before {
			t.Errorf("the write on version %d is not reconciled", base)
		}
		pass(time.Minute) // With the resends.
	}
}

// reconcile reads an absent object and o, as an operator does.
func reconcile(
	t *testing.T, source *controllerruntime.Source[string], queue workqueue.TypedRateLimitingInterface[string], base int,
) {
	t.Helper()

	for range queue.Len() {
		item, _ := queue.Get()
		queue.Done(item)
	}

	reader := source.Client("skr", "skr", runtimeClient{version: strconv.Itoa(base)})
	_ = reader.Get(t.Context(), client.ObjectKey{Name: "optional"}, new(metav1.PartialObjectMetadata))
	if err := reader.Get(t.Context(), client.ObjectKey{Name: "o"}, new(metav1.PartialObjectMetadata)); err != nil {
		t.Fatal(err)
	}
}

// pass lets virtual time pass, until everything in the bubble waits.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// overTheWire writes and reads each batch as contract v3 does.
func overTheWire(source core.Handler) core.ForwarderFunc {
	return func(ctx context.Context, manager core.Manager, batch core.Batch) error {
		batch.Source = "skr"
		request, err := contract.V3.Encode(&batch)
		if err != nil {
			return err
		}

		got, err := contract.V3.Decode(request.Body)
		if err != nil {
			return err
		}

		for _, e := range got.Events {
			if err := source.Handle(ctx, core.Delivery{Runtime: "skr", Manager: manager, Event: e.WatchEvent}); err != nil {
				return err
			}
		}
		return nil
	}
}

func review(t *testing.T, webhook http.Handler, name, operation string, base int) {
	t.Helper()

	object := func(spec int) string {
		return fmt.Sprintf(`{"apiVersion":"g/v1","kind":"K","metadata":{"name":%q,"uid":"u","resourceVersion":"%d"},"spec":{"a":%d}}`,
			name, base, spec)
	}
	changed := object(base + 1)
	if operation == "DELETE" {
		changed = "null"
	}

	body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r",
		"kind":{"group":"g","version":"v1","kind":"K"},"name":%q,"operation":%q,"object":%s,"oldObject":%s}}`,
		name, operation, changed, object(base))
	request := httptest.NewRequest(http.MethodPost, "/validate/kyma", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")

	answer := httptest.NewRecorder()
	webhook.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		t.Fatalf("the webhook answers %d: %s", answer.Code, answer.Body)
	}
}
