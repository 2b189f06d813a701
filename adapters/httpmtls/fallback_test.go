package httpmtls_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// reasoned is an error with a reason.
type reasoned string

func (r reasoned) Error() string  { return string(r) }
func (r reasoned) Reason() string { return string(r) }

const (
	unknownContract = reasoned(reasons.UnknownContract)
	unknownManager  = reasoned(reasons.UnknownManager)
	down            = reasoned("dial")
)

// end answers as a test sets it.
type end struct {
	coretest.Recorder
	calls int // that seen has returned
}

func (e *end) set(err error) { e.Always(func(context.Context, core.Batch) error { return err }) }

// seen returns the names of the events that arrived since the last call.
func (e *end) seen() (names []string) {
	calls := e.Calls()
	for _, call := range calls[e.calls:] {
		for i := range call.Batch.Events {
			names = append(names, call.Batch.Events[i].Watched.Name)
		}
	}

	e.calls = len(calls)
	return names
}

// TestFallback has the answers to one manager, in their order. The jitter is at most a quarter of a
// minute.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			newest, older end
			unknown       int
			inUse         []bool
		)
		forwarder := must(httpmtls.NewFallback(&newest, &older, httpmtls.FallbackOptions{
			RetryNewest: time.Minute,
			Unknown:     func(hook.UnknownContract) { unknown++ },
			InUse:       func(f hook.Fallback) { inUse = append(inUse, f.Older) },
		}))
		some := core.EventErrors{1: down}
		all := core.EventErrors{0: down, 1: down}
		for i, step := range []struct {
			name          string
			newest, older error
			wait          time.Duration
			want          error
			asked         []bool // newest, older
			unknown       int
			inUse         []bool
		}{
			{"the manager is not there yet", unknownManager, nil, 0, unknownManager, []bool{true, false}, 0, nil},
			{"knows the newest one, refuses all", all, nil, 0, all, []bool{true, false}, 0, nil},
			{"no path for any contract", unknownContract, unknownManager, 0, unknownContract, []bool{true, true}, 1, nil},
			{"forbidden by a gateway, and missing", unknownContract, core.ErrUnknownManager, 0, core.ErrUnknownManager, []bool{true, true}, 2, nil},
			{"the older one is down", unknownContract, down, 0, unknownContract, []bool{true, true}, 3, nil},
			{"knows the older one", unknownContract, nil, 0, nil, []bool{true, true}, 4, []bool{true}},
			{"after the time without jitter", nil, nil, time.Minute, nil, []bool{false, true}, 4, []bool{true}},
			{"soon after, down", nil, down, 0, down, []bool{false, true}, 4, []bool{true}},
			{"later, does still not know it", unknownContract, nil, time.Minute / 4, nil, []bool{true, true}, 5, []bool{true}},
			{"later, an attempt fails otherwise", down, nil, time.Minute * 5 / 4, nil, []bool{true, true}, 5, []bool{true}},
			{"after the time without jitter again", nil, nil, time.Minute, nil, []bool{false, true}, 5, []bool{true}},
			{"later, knows it, takes some", some, nil, time.Minute / 4, some, []bool{true, false}, 5, []bool{true, false}},
			{"down", down, nil, 0, down, []bool{true, false}, 5, []bool{true, false}},
			{"rolled back", unknownContract, nil, 0, nil, []bool{true, true}, 6, []bool{true, false, true}},
		} {
			time.Sleep(step.wait)
			newest.set(step.newest)
			older.set(step.older)
			err := forwarder.Forward(t.Context(), manager, core.NewBatch(event("a"), event("b")))
			if fmt.Sprint(err) != fmt.Sprint(step.want) {
				t.Errorf("step %d, %s: %v, want %v", i, step.name, err, step.want)
			}
			if asked := []bool{newest.seen() != nil, older.seen() != nil}; !slices.Equal(asked, step.asked) {
				t.Errorf("step %d, %s: newest and older were asked: %v, want %v", i, step.name, asked, step.asked)
			}
			if unknown != step.unknown || !slices.Equal(inUse, step.inUse) {
				t.Errorf("step %d, %s: %d times unknown, in use %v, want %d and %v", i, step.name, unknown, inUse,
					step.unknown, step.inUse)
			}
		}
	})
}

// A policy of a gateway gives the same 403 for a path that it does not allow and for a sender that
// it denies. The contract is unknown only if the older one arrives.
func TestTheOlderContractDecidesWhatAGatewayDenies(t *testing.T) {
	keys := newPKI(t)
	for name, c := range map[string]struct {
		allowed   contract.Version // "": the gateway denies the sender
		want      string           // reason, empty: acknowledged
		unknown   int
		withOlder bool
	}{
		"only v2 is allowed":                {contract.V2, "", 1, true},
		"the sender is denied":              {"", reasons.GatewayRefused, 0, true},
		"only v2 is allowed, no fallback":   {contract.V2, reasons.GatewayRefused, 0, false},
		"the sender is denied, no fallback": {"", reasons.GatewayRefused, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			far := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) {
				if c.allowed == "" || r.URL.Path != c.allowed.Path(manager) {
					w.WriteHeader(http.StatusForbidden)
					_, _ = io.WriteString(w, "RBAC: access denied")
				}
			})
			unknown := 0
			var older core.Forwarder
			if c.withOlder {
				older = newForwarder(t, keys.client, far.address(), httpmtls.Options{})
			}

			forwarder := must(httpmtls.NewFallback(
				newForwarderOf(t, keys.client, far.address(), contract.V3, httpmtls.Options{Identity: "a"}), older,
				httpmtls.FallbackOptions{Unknown: func(hook.UnknownContract) { unknown++ }}))

			err := forward(t, forwarder, event("a"))
			if (err == nil) != (c.want == "") || err != nil && string(core.ReasonOf(err)) != c.want {
				t.Errorf("have %v, want the reason %q", err, c.want)
			}
			if err != nil && (!errors.Is(err, core.ErrForbidden) || core.RetryAfter(err) == 0) {
				t.Errorf("%v is not forbidden, or asks for no wait", err)
			}
			if unknown != c.unknown {
				t.Errorf("Unknown was called %d times, want %d", unknown, c.unknown)
			}
		})
	}
}

func TestUnknownContractIsReportedWithoutOlderOne(t *testing.T) {
	newest := &end{}
	unknown := 0
	forwarder := must(httpmtls.NewFallback(newest, nil,
		httpmtls.FallbackOptions{Unknown: func(hook.UnknownContract) { unknown++ }}))
	newest.set(unknownContract)
	if err := forwarder.Forward(t.Context(), manager, core.NewBatch(event("a"))); !errors.Is(err, unknownContract) ||
		core.IsPermanent(err) {
		t.Errorf("error %v, want that of the newest contract, and that it may be tried again", err)
	}

	for _, forwarders := range [][2]core.Forwarder{{}, {core.ForwarderFunc(nil)}, {newest, core.ForwarderFunc(nil)}} {
		if _, err := httpmtls.NewFallback(forwarders[0], forwarders[1], httpmtls.FallbackOptions{}); err == nil {
			t.Errorf("no error for the forwarders %v", forwarders)
		}
	}

	if unknown != 1 {
		t.Errorf("Unknown was called %d times, want once", unknown)
	}
}

// Events that were not accepted are named, even if others were.
func TestOlderContractLosesNothing(t *testing.T) {
	refused := &httpmtls.Error{}
	for name, test := range map[string]struct {
		answer func(name string, n int) error // to the n-th request, with an event of a name
		whole  error
	}{
		"all taken": {func(string, int) error { return nil }, nil},
		"one refused": {func(name string, _ int) error {
			if name == "7" {
				return core.EventErrors{0: refused}
			}
			return nil
		}, nil},
		"down from the start": {func(string, int) error { return down }, unknownContract},
		"down after ten": {func(_ string, n int) error {
			if n >= 10 {
				return down
			}
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			newest := &end{}
			newest.set(unknownContract)
			var (
				mu      sync.Mutex
				answers = make(map[string]error)
			)
			older := core.ForwarderFunc(func(_ context.Context, _ core.Manager, batch core.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				if batch.Heartbeat != nil {
					t.Error("the older contract got a heartbeat")
				}

				name := batch.Events[0].Watched.Name
				answers[name] = test.answer(name, len(answers))
				return answers[name]
			})
			forwarder := must(httpmtls.NewFallback(newest, older, httpmtls.FallbackOptions{}))
			batch := core.Batch{Heartbeat: &core.Heartbeat{}}
			for i := range 30 {
				batch.Events = append(batch.Events, core.Numbered{WatchEvent: event(strconv.Itoa(i))})
			}

			err := forwarder.Forward(t.Context(), manager, batch)
			some, ok := errors.AsType[core.EventErrors](err)
			switch {
			case test.whole != nil && !errors.Is(err, test.whole):
				t.Errorf("error %v, want %v", err, test.whole)
			case test.whole != nil:
			case err != nil && !ok:
				t.Errorf("error %v, want one for each event that was not taken", err)
			default:
				for i := range batch.Events {
					answer, sent := answers[batch.Events[i].Watched.Name]
					if failed := some[i] != nil; failed == (sent && answer == nil) {
						t.Errorf("event %d: failed %v, but its answer is %v, sent %v", i, failed, answer, sent)
					}
				}
				if name == "one refused" && !errors.Is(some[7], refused) {
					t.Errorf("event 7: %v, want %v", some[7], refused)
				}
			}
		})
	}
}

// The first request of an agent may be a heartbeat, which the older contract cannot carry. A policy
// of the gateway that forbids the newest contract must not delay the events for half a minute.
func TestForeign403OfAHeartbeatDelaysNoEvent(t *testing.T) {
	keys := newPKI(t)
	far := newFarEnd(t, keys.server, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == contract.V3.Path(manager) {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	newest := newForwarderOf(t, keys.client, far.address(), contract.V3, httpmtls.Options{Identity: "a"})
	older := newForwarder(t, keys.client, far.address(), httpmtls.Options{})
	forwarder := must(httpmtls.NewFallback(newest, older, httpmtls.FallbackOptions{}))
	beat := core.Batch{Epoch: "e", Heartbeat: &core.Heartbeat{ID: "heartbeat", Number: 1}}
	err := forwarder.Forward(t.Context(), manager, beat)
	if core.RetryAfter(newest.Forward(t.Context(), manager, beat)) == 0 {
		t.Fatalf("a foreign 403 asks for no wait, so the test proves nothing: %v", err)
	}
	// An error of the heartbeat alone delays no event.
	if failed, ok := errors.AsType[core.EventErrors](err); !ok || core.ReasonOf(failed[0]) != reasons.GatewayRefused {
		t.Errorf("have %v, want that a gateway refused the heartbeat alone", err)
	}
	if err := forward(t, forwarder, event("a")); err != nil {
		t.Errorf("the first event: %v", err)
	}
}

// The only event that waits is refused for itself. The answer names it, so the older contract is
// known, and the event waits alone instead of the manager.
func TestRefusedEventProvesTheOlderContract(t *testing.T) {
	keys := newPKI(t)
	for name, test := range map[string]struct {
		body string
		want string // reason
	}{
		"a listener": {`{"reason":"panic","failed":[{"index":0,"status":503,"reason":"panic"}]}`, reasons.NotReady},
		"a gateway":  {"upstream failed", reasons.UnknownContract},
	} {
		t.Run(name, func(t *testing.T) {
			far := newFarEnd(t, keys.server, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = w.Write([]byte(test.body))
			})
			newest := &end{}
			newest.set(unknownContract)
			older := newForwarder(t, keys.client, far.address(), httpmtls.Options{})
			forwarder := must(httpmtls.NewFallback(newest, older, httpmtls.FallbackOptions{}))
			err := forwarder.Forward(t.Context(), manager, core.NewBatch(event("a")))
			if some, ok := errors.AsType[core.EventErrors](err); ok {
				err = some[0]
			}
			if string(core.ReasonOf(err)) != test.want {
				t.Errorf("error %v, want reason %s", err, test.want)
			}
		})
	}
}
