package subresources

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// define creates a definition with one object, and returns the kind.
func define(s *scene, plural, name, label string) kind {
	s.t.Helper()
	d := lab.Definition("example.com", plural, name)
	d.Labels = map[string]string{"of": label}
	lab.NoError(s.t, s.plane.Client.Create(s.t.Context(), d))
	k := kindOf("example.com", plural, name, "default")
	lab.Eventually(s.t, 3*time.Minute, "an object of "+plural, func() bool {
		status, _ := s.api.Do(s.t, http.MethodPost, k.path(""), plainJSON, k.object("one", ""))
		return status == http.StatusCreated
	})
	return k
}

// TestDeletedDefinitions: an API server deletes the objects of a definition without a review, so the
// deletion of the definition is a resync of the managers that watch them, and of no other.
func TestDeletedDefinitions(t *testing.T) {
	s := newScene(t)
	first := define(s, "doomed", "Doomed", "two")
	define(s, "finished", "Finished", "one")
	define(s, "ignored", "Ignored", "none")
	doomed := `
metadata: {name: doomed}
spec:
  resourceToWatch: {group: example.com, version: "*", resource: doomed}
  labelsToWatch: {not: there}`
	both := doomed + `
---
metadata: {name: finished}
spec: {resourceToWatch: {group: example.com, version: v1, resource: finished/scale}}`
	s.register(selected, watches(t, selected, both), admission.ConfigurationOptions{})
	s.register(everything, watches(t, everything, doomed), admission.ConfigurationOptions{NoMatchConditions: true})
	s.taken()
	for _, tt := range []struct {
		name, definition, query string
		selected, everything    int
	}{
		{"dry run", "doomed.example.com", "?dryRun=All", 0, 0},
		{"definition of no manager", "ignored.example.com", "", 0, 0},
		{"definition of two managers", "doomed.example.com", "", 1, 1},
		{"several definitions in one request", "", "?labelSelector=of%3Done", 1, 0},
	} {
		remove(tt.query)(s, definitions, tt.definition)
		events, _ := s.taken()
		want := slices.Repeat([]string{"resync"}, tt.selected)
		if !slices.Equal(events[selected], want) || len(events[everything]) != tt.everything {
			t.Errorf("%s: %v, want %d and %d resyncs", tt.name, events, tt.selected, tt.everything)
		}
	}
	lab.Eventually(t, 3*time.Minute, "the API server deletes the objects", func() bool {
		status, _ := s.api.Do(t, http.MethodGet, first.path("one"), plainJSON, "")
		return status == http.StatusNotFound
	})
	if events, called := s.taken(); len(events) != 0 || len(called) != 0 {
		t.Errorf("the deletion of the object: %v and calls %v, want none, or the resync is not needed", events, called)
	}
}
