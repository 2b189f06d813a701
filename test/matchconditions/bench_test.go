package matchconditions

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// BenchmarkWrite measures one write, by one writer, without webhook, with one that is asked about everything, and with match
// conditions: writes that matter, and those that only change a label.
func BenchmarkWrite(b *testing.B) {
	s := newScene(b)
	for _, stage := range []struct {
		name  string
		watch core.Manager
	}{{"none", ""}, {"everything", everything}, {"selection", selection}} {
		if stage.watch != "" {
			s.watch(stage.watch, stage.watch == selection)
		}

		for _, size := range []int{2 << 10, 100 << 10} {
			b.Run(fmt.Sprintf("webhook=%s/kB=%d/label", stage.name, size>>10), func(b *testing.B) {
				s.measure(b, size, `{"metadata":{"labels":{"a":"%d"}}}`)
			})
			b.Run(fmt.Sprintf("webhook=%s/kB=%d/spec", stage.name, size>>10), func(b *testing.B) {
				s.measure(b, size, `{"spec":{"b":"%d"}}`)
			})
		}

		s.unwatch(stage.watch)
	}
}

func (s *scene) measure(b *testing.B, size int, patch string) {
	b.Helper()
	s.do(http.MethodDelete, widgets.path("bench", ""), "application/json", "")
	s.create(widgets, "bench", fmt.Sprintf(`"spec":{"a":%q}`, strings.Repeat("x", size)))
	s.taken()

	n := 0
	for b.Loop() {
		n++
		if status := s.patch(widgets, "bench", "", fmt.Sprintf(patch, n)); status != http.StatusOK {
			b.Fatalf("status %d", status)
		}
	}

	reviews := s.taken()
	b.ReportMetric(float64(sum(reviews[everything])+sum(reviews[selection]))/float64(n), "calls/op")
}

// unwatch removes what watch made, and returns when the API server asks no more.
func (s *scene) unwatch(manager core.Manager) {
	s.t.Helper()
	if manager == "" {
		return
	}

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: string(manager)}}
	if err := s.plane.Client.Delete(s.t.Context(), configuration); err != nil {
		s.t.Fatal(err)
	}

	rig.Eventually(s.t, time.Minute, "the API server asks no more", func() bool {
		s.taken()
		s.do(http.MethodPost, configMaps.path("", ""), "application/json", `{"metadata":{"generateName":"probe-"}}`)
		return sum(s.taken()[manager]) == 0
	})
}
