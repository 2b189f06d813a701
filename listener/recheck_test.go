package listener_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// rechecking is a handler that checks after a time, or panics.
type rechecking struct {
	core.HandlerFunc

	after time.Duration
}

func (r *rechecking) RecheckAfter() time.Duration {
	if r.after < 0 {
		panic("no time")
	}
	return r.after
}

// TestAnswersNameTheCheck sends an event to handlers that check and to others.
func TestAnswersNameTheCheck(t *testing.T) {
	t.Parallel()

	takes := func(context.Context, core.Delivery) error { return nil }
	fails := func(context.Context, core.Delivery) error { return errors.New("later") }
	beat := core.Batch{Epoch: "e", Heartbeat: &core.Heartbeat{ID: "h", Number: 1, Interval: time.Second}}
	event := core.NewBatch(core.WatchEvent{
		Watched: types.NamespacedName{Name: "a"}, WatchedGVK: schema.GroupVersionKind{Version: "v1", Kind: "K"},
	})
	event.Epoch = "e"
	event.Events[0].Sequence = 1
	event.Events[0].ID = "1"

	for name, tt := range map[string]struct {
		handler core.Handler
		version contract.Version
		batch   core.Batch
		status  int
		want    string
	}{
		"it checks":                 {&rechecking{takes, 100 * time.Millisecond}, contract.V3, event, 202, "100"},
		"a heartbeat":               {&rechecking{takes, 100 * time.Millisecond}, contract.V3, beat, 202, "100"},
		"whole milliseconds":        {&rechecking{takes, 1999 * time.Microsecond}, contract.V3, event, 202, "1"},
		"less than a millisecond":   {&rechecking{takes, time.Microsecond}, contract.V3, event, 202, ""},
		"it does not check yet":     {&rechecking{takes, 0}, contract.V3, event, 202, ""},
		"it does not say":           {core.HandlerFunc(takes), contract.V3, event, 202, ""},
		"it panics":                 {&rechecking{takes, -1}, contract.V3, event, 202, ""},
		"it did not take the event": {&rechecking{fails, 100 * time.Millisecond}, contract.V3, event, 422, ""},
		"contract v2":               {&rechecking{takes, 100 * time.Millisecond}, contract.V2, event, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			l := newListener(t, listener.PeersFunc(known), listener.InsecureAllowAll(), tt.handler, listener.Options{})
			body := must(tt.version.Encode(new(contract.Claim(tt.batch, "runtime-a"))))(t)
			request := post(tt.version.Path(manager), string(body.Body))
			request.Header.Set("Content-Type", tt.version.ContentType())

			answer := serve(l, request)
			if answer.Code != tt.status {
				t.Errorf("status %d, want %d: %s", answer.Code, tt.status, answer.Body)
			}
			if got := answer.Header().Get("Runtime-Watcher-Recheck-After"); got != tt.want {
				t.Errorf("the check comes after %q ms, want %q", got, tt.want)
			}
		})
	}
}
