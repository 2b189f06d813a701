package canary_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

const configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// Each request names the one object, so that its right may be bound to the name.
func TestRequestsForAConfiguration(t *testing.T) {
	var have []string
	opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))(t)
		have = append(have, strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("Content-Type"), string(body)}, " "))

		if r.Method == http.MethodPatch {
			w.WriteHeader(http.StatusCreated)
		}

		_, _ = io.WriteString(w, "{}\n")
	})

	c := must(canary.NewConfiguration("mine", opts))(t)
	for _, apply := range []canary.ApplyOptions{{}, {Force: true, DryRun: true}} {
		if text := must(c.Apply(t.Context(), []byte("{}"), apply))(t); string(text) != "{}\n" {
			t.Errorf("answer %q", text)
		}
	}

	_ = must(c.Read(t.Context()))(t)
	check(t, c.Delete(t.Context(), "17"))
	calls := 0
	check(t, c.Watch(t.Context(), func() { calls++ }))

	want := []string{
		"PATCH " + configurations + "/mine?fieldManager=runtime-watcher-agent application/apply-patch+yaml {}",
		"PATCH " + configurations + "/mine?fieldManager=runtime-watcher-agent&force=true&dryRun=All application/apply-patch+yaml {}",
		"GET " + configurations + "/mine  ",
		"DELETE " + configurations + `/mine application/json {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"17"}}`,
		"GET " + configurations + "?fieldSelector=metadata.name%3Dmine&timeoutSeconds=300&watch=true  ",
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if calls != 1 {
		t.Errorf("%d changes, want one", calls)
	}
}

// A watch keeps its connection, and other requests go on meanwhile.
func TestAWatchReportsEachChange(t *testing.T) {
	events := make(chan string)
	opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("watch") {
			return
		}

		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()

		for text := range events {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	})

	c := must(canary.NewConfiguration("mine", opts))(t)
	changed := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(t.Context(), func() { changed <- struct{}{} }) }()

	for range 3 {
		events <- `{"type":"MODIFIED",` + strings.Repeat(" ", 10_000)
		events <- "}\n"
		<-changed
		_ = must(c.Read(t.Context()))(t)
	}

	close(events)
	check(t, <-ended)
}

func TestAMissingConfigurationIsNoError(t *testing.T) {
	opts := apiServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	c := must(canary.NewConfiguration("mine", opts))(t)
	if text := must(c.Read(t.Context()))(t); text != nil {
		t.Errorf("configuration %q, want none", text)
	}

	check(t, c.Delete(t.Context(), "17"))
	if err := c.Watch(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("watch: %v, want the status", err)
	}
}

func TestTheEndOfTheContextEndsAWatch(t *testing.T) {
	opts := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c := must(canary.NewConfiguration("mine", opts))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(ctx, func() {}) }()
	cancel()

	if err := <-ended; err == nil {
		t.Error("want the end of the context")
	}
}

// Any API server of a cluster has the configuration. An answer such as a missing right is final.
func TestAnyOfSeveralAPIServersHasTheConfiguration(t *testing.T) {
	t.Parallel()

	works := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}\n") }
	forbids := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }
	breaks := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for title, test := range map[string]struct {
		first  http.HandlerFunc
		second http.HandlerFunc
		fails  string
	}{
		"both work":          {works, forbids, ""},
		"one is not ready":   {refuses, works, ""},
		"one breaks off":     {breaks, works, ""},
		"none is ready":      {breaks, refuses, "503"},
		"the right is not":   {forbids, works, "403"},
		"the second says so": {refuses, forbids, "403"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()

			opts, _ := severalServers(t, test.first, test.second)
			c := must(canary.NewConfiguration("mine", opts))(t)
			for method, call := range map[string]func() error{
				"read":   func() error { _, err := c.Read(t.Context()); return err },
				"apply":  func() error { _, err := c.Apply(t.Context(), []byte("{}"), canary.ApplyOptions{}); return err },
				"delete": func() error { return c.Delete(t.Context(), "17") },
				"watch":  func() error { return c.Watch(t.Context(), func() {}) },
			} {
				err := call()
				if (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%s: error %v, want %q", method, err, test.fails)
				}
			}
		})
	}
}

// An API server that takes requests and never answers leaves a part of the time for the next one.
func TestAStalledAPIServerLeavesTime(t *testing.T) {
	t.Parallel()

	stalls := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	}
	works := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}\n") }
	opts, _ := severalServers(t, stalls, works)
	c := must(canary.NewConfiguration("mine", opts))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()

	_ = must(c.Read(ctx))(t)
	_ = must(c.Read(ctx))(t) // It begins with the one that has answered.
	check(t, c.Watch(ctx, func() {}))
}
