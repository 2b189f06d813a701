package prometheus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

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
