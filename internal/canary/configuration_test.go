package canary_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/internal/canary"
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
