package subresources

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define creates a definition with one object, and returns the path of the object.
func define(s *scene, plural, kind, label string) string {
	s.t.Helper()
	d := lab.Definition("example.com", plural, kind)
	d.APIVersion, d.Kind, d.Labels = "apiextensions.k8s.io/v1", "CustomResourceDefinition", map[string]string{"of": label}
	create(definitions, string(lab.Must(json.Marshal(d))))(s)
	object := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":"one"}}`, kind)
	lab.Eventually(s.t, 3*time.Minute, "an object of "+plural, func() bool {
		status, _ := s.do("POST", namespaced("example.com", plural, ""), plainJSON, object)
		return status == 201
	})
	return namespaced("example.com", plural, "one")
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
		name                 string
		write                write
		selected, everything int
	}{
		{"dry run", remove(definitions + "/doomed.example.com?dryRun=All"), 0, 0},
		{"definition of no manager", remove(definitions + "/ignored.example.com"), 0, 0},
		{"definition of two managers", remove(definitions + "/doomed.example.com"), 1, 1},
		{"several definitions in one request", remove(definitions + "?labelSelector=of%3Done"), 1, 0},
	} {
		tt.write(s)
		events, _ := s.taken()
		want := slices.Repeat([]string{"resync"}, tt.selected)
		if !slices.Equal(events[selected], want) || len(events[everything]) != tt.everything {
			t.Errorf("%s: %v, want %d and %d resyncs", tt.name, events, tt.selected, tt.everything)
		}
	}
	lab.Eventually(t, 3*time.Minute, "the API server deletes the objects", func() bool {
		status, _ := s.do("GET", first, plainJSON, "")
		return status == 404
	})
	if events, called := s.taken(); len(events) != 0 || len(called) != 0 {
		t.Errorf("the deletion of the object: %v and calls %v, want none, or the resync is not needed", events, called)
	}
}
