package prometheus_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
	"github.com/runtime-watcher/runtime-watcher/core"
)

func TestListenerBoundsManagers(t *testing.T) {
	listener, reg := registered(t, prometheus.NewListener, prometheus.Options{MaxManagers: 2, Managers: []core.Manager{"known"}})
	listener.Hooks.Answered("", "", http.StatusNotFound, "unknown_path", time.Microsecond)
	for i := range 100 {
		manager := core.Manager(fmt.Sprintf("guess-%d", i))
		listener.Hooks.Answered("v2", manager, http.StatusNotFound, "unknown_manager", time.Microsecond)
	}
	listener.Hooks.Answered("v2", "known", http.StatusServiceUnavailable, "not_ready", time.Microsecond)
	listener.Hooks.Answered("v2", "known", 0, "\xff", time.Microsecond)
	wantLines(t, scrape(t, reg),
		`requests_total{code="404",contract="",manager="_other",reason="unknown_path"} 1`,
		`requests_total{code="404",contract="v2",manager="guess-0",reason="unknown_manager"} 1`,
		`requests_total{code="404",contract="v2",manager="_other",reason="unknown_manager"} 99`,
		`requests_total{code="503",contract="v2",manager="known",reason="not_ready"} 1`,
		`requests_total{code="other",contract="v2",manager="known",reason="other"} 1`,
	)
}

// TestListenerAliases wants the names and labels of the former listener, and none unless asked for.
func TestListenerAliases(t *testing.T) {
	const former = "watcher_listener_"
	listener, reg := registered(t, prometheus.NewListener, prometheus.Options{Aliases: true})
	for _, status := range []int{
		http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnauthorized, http.StatusForbidden,
	} {
		listener.Hooks.Answered("v2", "known", status, "", time.Second)
	}
	listener.Hooks.InFlight(2)
	text := "\n" + scrape(t, reg)
	for _, want := range []string{
		`requests_total{server_name="listener"} 5`, `request_errors_total{server_name="listener"} 4`,
		`exceeding_size_limit_requests_total{server_name="listener"} 1`,
		`failed_verification_requests_total{request_uri_label="/v2/known/event",server_name="listener"} 2`,
		`request_duration{server_name="listener"} 1`, `inflight_requests{server_name="listener"} 2`,
	} {
		if !strings.Contains(text, "\n"+former+want+"\n") {
			t.Errorf("no %s%s in\n%s", former, want, text)
		}
	}
	_, reg = registered(t, prometheus.NewListener, prometheus.Options{})
	if text := "\n" + scrape(t, reg); strings.Contains(text, "\n"+former) {
		t.Errorf("aliases that were not asked for in\n%s", text)
	}
}

// Each message has one fate. A verifier or handler of the operator may choose reasons, so they are
// bounded.
func TestConsumerCountsMessages(t *testing.T) {
	consumer, reg := registered(t, prometheus.NewConsumer, prometheus.Options{MaxManagers: 1})
	consumer.Concluded("kyma", "enqueued", "", 3*time.Millisecond)
	consumer.Concluded("kyma", "enqueued", "", 3*time.Millisecond)
	consumer.Concluded("kyma", "terminated", "forbidden", time.Millisecond)
	consumer.Concluded("another", "delayed", "not_ready", time.Millisecond)
	for i := range 100 {
		consumer.Concluded("kyma", "delayed", fmt.Sprintf("reason-%d", i), time.Millisecond)
	}
	consumer.Backlog("kyma", 12, 0.5, time.Minute)
	consumer.Redelivered("kyma")
	wantLines(t, scrape(t, reg),
		`runtime_watcher_consumer_backlog_messages{manager="kyma"} 12`,
		`runtime_watcher_consumer_backlog_ratio{manager="kyma"} 0.5`,
		`runtime_watcher_consumer_backlog_age_seconds{manager="kyma"} 60`,
		`runtime_watcher_consumer_redelivered_messages_total{manager="kyma"} 1`,
		`runtime_watcher_consumer_messages_total{fate="enqueued",manager="kyma",reason=""} 2`,
		`runtime_watcher_consumer_messages_total{fate="terminated",manager="kyma",reason="forbidden"} 1`,
		`runtime_watcher_consumer_messages_total{fate="delayed",manager="_other",reason="not_ready"} 1`,
		`runtime_watcher_consumer_messages_total{fate="delayed",manager="kyma",reason="other"} 38`,
		`runtime_watcher_consumer_message_duration_seconds_bucket{fate="enqueued",le="0.005"} 2`,
		`runtime_watcher_consumer_message_duration_seconds_count{fate="delayed"} 101`,
	)
}
