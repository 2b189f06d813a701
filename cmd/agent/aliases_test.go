package main

import (
	"net/http"
	"strings"
	"testing"
)

// The metrics of kyma-project/runtime-watcher, with all of their series from the start.
func TestMetricAliases(t *testing.T) {
	t.Parallel()
	_, s := startWith(t, http.StatusOK, "KCP_CONTRACT=v2", "METRICS_ALIASES=true", "MANAGERS=gadgets,*")
	for metric, want := range map[string]float64{
		"watcher_admission_request_total": 0, "watcher_admission_request_error_total": 0, "watcher_fips_mode": 0,
		`watcher_failed_kcp_total\{error_reason="failed-request"\}`:              0,
		`watcher_failed_kcp_total\{error_reason="unknown-owner"\}`:               0,
		`watcher_failed_kcp_total\{error_reason="invalid-subresource"\}`:         0,
		`watcher_failed_kcp_total\{error_reason="missing-address-or-contract"\}`: 0,
		`watcher_failed_kcp_total\{error_reason="request-setup"\}`:               0,
		"watcher_request_duration":                                               0,
	} {
		scrape := s.scrape(t)
		if n := count(t, scrape, metric); n != want || !strings.Contains(scrape, strings.ReplaceAll(metric, `\`, "")+" ") {
			t.Errorf("%s is %v at the start, want %v", metric, n, want)
		}
	}
	s.review(t, "demo", false) // The list of managers is open for widgets.
	// A resync for each of both managers, and the event.
	s.awaits(t, map[string]float64{"watcher_admission_request_total": 1, "watcher_kcp_requests_total": 3})
	if status, _ := do(t, s.client, http.MethodPost, "https://"+s.webhook+"/validate/widgets", "{"); status == http.StatusOK {
		t.Error("a broken review was accepted")
	}
	s.get(t, "https://"+s.webhook+"/elsewhere") // It is outside of /validate/.
	s.awaits(t, map[string]float64{
		"watcher_admission_request_total": 2, "watcher_admission_request_error_total": 1,
	})
	scrape := s.scrape(t)
	if mean := count(t, scrape, `watcher_request_duration`); mean < 1e-4 || mean > patience.Seconds() {
		t.Errorf("mean duration %v s, want at least 0.0001 s, which has no exponent", mean)
	}
	s.stop(t)
}

func TestMetricAliasesCountFailures(t *testing.T) {
	t.Parallel()
	_, s := startWith(t, http.StatusServiceUnavailable, "KCP_CONTRACT=v2", "METRICS_ALIASES=true", "SHUTDOWN_TIMEOUT=100ms")
	s.review(t, "demo", false)
	s.until(t, func(scrape string) string {
		sent, failed := count(t, scrape, "watcher_kcp_requests_total"), count(t, scrape, "watcher_failed_kcp_total")
		if sent == 0 || failed < sent {
			return "want a failure for each request"
		}
		return ""
	})
	s.stop(t)
}

// awaits polls metrics until they have these values, or more after stalls.
func (s *started) awaits(t *testing.T, want map[string]float64) {
	t.Helper()
	s.until(t, func(scrape string) (wrong string) {
		for metric, value := range want {
			if got := count(t, scrape, metric); got < value || got > value+2*s.stalls() { // There are two managers.
				wrong = "wrong: " + metric
			}
		}
		return wrong
	})
}
