package coretest

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	managerA core.Manager = "manager-a"
	managerB core.Manager = "manager-b"

	epoch = "epoch-1"
)

// sampleEvent returns the n-th of many different events. Some are cluster-scoped or of the core
// group. Some have the longest name, or characters that an encoding must escape.
func sampleEvent(n int) core.WatchEvent {
	e := core.WatchEvent{
		Owner:       types.NamespacedName{Namespace: "kcp-system", Name: fmt.Sprintf("runtime-%d", n)},
		Watched:     types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("object-%d", n)},
		WatchedGVK:  schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Sample"},
		Operation:   core.OperationUpdate,
		Field:       core.FieldSpec,
		Generation:  int64(n + 1),
		UID:         types.UID(fmt.Sprintf("uid-%d", n)),
		Base:        int64(n + 1),
		Time:        time.Unix(1_700_000_000, 123_456_789).UTC(),
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}

	switch n % 4 {
	case 1:
		e.Watched = types.NamespacedName{Name: fmt.Sprintf("system:role-%d", n)}
		e.WatchedGVK = schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}
	case 2:
		e.WatchedGVK = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	case 3:
		const longest = 253
		e.Watched.Name += strings.Repeat("x", longest-len(e.Watched.Name))
	}

	return e
}

func sampleEvents(from, count int) []core.WatchEvent {
	events := make([]core.WatchEvent, count)
	for i := range events {
		events[i] = sampleEvent(from + i)
	}
	return events
}

func numbered(events ...core.WatchEvent) core.Batch {
	batch := core.NewBatch(events...)
	batch.Source = "runtime-1"
	batch.Epoch = epoch
	for i := range batch.Events {
		batch.Events[i].Sequence = uint64(i + 1)
		batch.Events[i].ID = fmt.Sprintf("%s-%d", epoch, i+1)
	}
	return batch
}

func beating(batch core.Batch) core.Batch {
	batch.Heartbeat = sampleHeartbeat()
	return batch
}

func sampleHeartbeat() *core.Heartbeat {
	at := time.Unix(1_700_000_000, 123_456_789).UTC()
	return &core.Heartbeat{
		ID:                     epoch + "-heartbeat-3",
		Time:                   at,
		Number:                 3,
		Interval:               30 * time.Second,
		Instance:               "agent-0",
		Leaving:                true,
		Sequence:               2,
		Pending:                4,
		OldestPending:          1500 * time.Millisecond,
		Dropped:                map[core.Reason]int64{"overflow": 5, "malformed": 6},
		Version:                "1.2.3",
		CertificateFingerprint: "aa",
		CertificateExpiry:      at.Add(time.Hour),
		CAFingerprints:         []string{"bb", "cc"},
		KeyMaterialError:       "tls.key: empty",
		ConfigError:            "managers: broken",
		Canary:                 core.CanaryLost,
		CanaryError:            "403 Forbidden",
		WebhookError:           "one is missing",
		LastReview:             at.Add(-time.Minute),
		WebhookFailures:        7,
		ConfigHash:             "dd",
		Interruption: core.Interruption{
			Reason: "proxy_unreachable", Error: "connection refused",
			Since: at.Add(-time.Hour), Until: at.Add(-time.Minute),
		},
	}
}

// Changed returns an event for an update of the spec of an object. The group of its kind is
// "example.com". It has no owner, time or trace.
func Changed(kind, namespace, name string) core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: namespace, Name: name},
		WatchedGVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: kind},
		Operation:  core.OperationUpdate,
		Field:      core.FieldSpec,
		Generation: 2,
	}
}
