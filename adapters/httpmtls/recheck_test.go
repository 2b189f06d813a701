package httpmtls_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

const recheckHeader = "Runtime-Watcher-Recheck-After"

// checks is a receiver with one answer to each manager.
type checks struct {
	mu     sync.Mutex
	status int
	value  string
	body   string
}

func (c *checks) set(status int, value, body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	c.value = value
	c.body = body
}

func (c *checks) answer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value != "" && !strings.Contains(r.URL.Path, "never") {
		w.Header().Set(recheckHeader, c.value)
	}

	w.WriteHeader(c.status)
	_, _ = w.Write([]byte(c.body))
}

type rechecking interface {
	core.Forwarder
	RecheckAfter(manager core.Manager) time.Duration
}

func numberedBatch() core.Batch {
	batch := core.NewBatch(event("a"), event("b"))
	batch.Epoch = "e"
	for i := range batch.Events {
		batch.Events[i].Sequence = uint64(i + 1)
		batch.Events[i].ID = fmt.Sprint("e-", i)
	}

	return batch
}

// TestTheLastAnswerSaysWhetherTheReceiverChecks sends to two managers.
func TestTheLastAnswerSaysWhetherTheReceiverChecks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status      int
		value, body string
		want        time.Duration
	}{
		"it checks":                {202, "100", "", 100 * time.Millisecond},
		"it checks later":          {202, "60000", "", time.Minute},
		"it says nothing":          {202, "", "", 0},
		"too long":                 {202, "60001", "", 0},
		"far too long":             {202, "99999999999999999999", "", 0},
		"zero":                     {202, "0", "", 0},
		"negative":                 {202, "-100", "", 0},
		"a duration of Go":         {202, "100ms", "", 0},
		"another status":           {200, "100", "", 0},
		"a part is refused":        {422, "100", `{"reason":"partial","failed":[{"index":1,"status":503,"reason":"other"}]}`, 0},
		"the manager is unknown":   {404, "100", `{"reason":"unknown_manager"}`, 0},
		"the page of a gateway":    {202, "100", "<html>", 0},
		"the replica is no leader": {503, "100", `{"reason":"not_ready"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var receiver checks
			ends := newPKI(t)
			end := newFarEnd(t, ends.server, receiver.answer)
			newest := newForwarderOf(t, ends.client, end.address(), contract.V3, httpmtls.Options{Retries: -1})
			for _, before := range []string{"", "200"} {
				receiver.set(202, before, "")
				check(t, newest.Forward(t.Context(), "kyma", numberedBatch()))
				receiver.set(tt.status, tt.value, tt.body)
				for _, manager := range []core.Manager{"kyma", "never"} {
					_ = newest.Forward(t.Context(), manager, numberedBatch())
				}

				if got := newest.RecheckAfter("kyma"); got != tt.want {
					t.Errorf("after an answer with %q: the receiver checks after %v, want %v", before, got, tt.want)
				}
				if got := newest.RecheckAfter("never"); got != 0 {
					t.Errorf("the answer of another manager counts: %v", got)
				}
			}
		})
	}
}

// TestOlderContractsHaveNoCheck uses contract v2, alone and as a fallback.
func TestOlderContractsHaveNoCheck(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	knowsNewest := true
	end := newFarEnd(t, ends.server, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(recheckHeader, "100")
		switch isNewest := strings.HasPrefix(r.URL.Path, "/v3/"); {
		case isNewest && knowsNewest:
			w.WriteHeader(http.StatusAccepted)
		case isNewest:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	newest := newForwarderOf(t, ends.client, end.address(), contract.V3, httpmtls.Options{})
	older := newForwarderOf(t, ends.client, end.address(), contract.V2, httpmtls.Options{})
	both, _ := must(httpmtls.NewFallback(newest, older, httpmtls.FallbackOptions{})).(rechecking)

	mustForward(t, older, event("a"))
	if got := older.RecheckAfter(manager); got != 0 {
		t.Errorf("contract v2: %v", got)
	}

	check(t, both.Forward(t.Context(), manager, numberedBatch()))
	if got := both.RecheckAfter(manager); got != 100*time.Millisecond {
		t.Errorf("contract v3: %v, want 100 ms", got)
	}

	knowsNewest = false
	check(t, both.Forward(t.Context(), manager, numberedBatch()))
	if got := both.RecheckAfter(manager); got != 0 {
		t.Errorf("while the fallback is in use: %v", got)
	}

	plain := core.ForwarderFunc(func(context.Context, core.Manager, core.Batch) error { return nil })
	if got := must(httpmtls.NewFallback(plain, older, httpmtls.FallbackOptions{})).(rechecking).RecheckAfter(manager); got != 0 {
		t.Errorf("a forwarder without the method: %v", got)
	}
}

// TestInventedManagersTakeNoMemory sends to more managers than an agent knows.
func TestInventedManagersTakeNoMemory(t *testing.T) {
	t.Parallel()

	var receiver checks
	receiver.set(202, "100", "")
	ends := newPKI(t)
	end := newFarEnd(t, ends.server, receiver.answer)
	newest := newForwarderOf(t, ends.client, end.address(), contract.V3, httpmtls.Options{})
	var all []core.Manager
	for i := range 301 {
		all = append(all, core.Manager(fmt.Sprint("invented-", i)))
		check(t, newest.Forward(t.Context(), all[i], numberedBatch()))
	}

	kept := 0
	for _, manager := range all {
		if newest.RecheckAfter(manager) > 0 {
			kept++
		}
	}

	if kept > 100 || newest.RecheckAfter(all[300]) == 0 {
		t.Errorf("the answers of %d managers are kept, want at most 100, and the last", kept)
	}
}
