package contract

import (
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// The types of the CloudEvents of contract v3.
const (
	typeChanged   = "com.github.runtime-watcher.changed"
	typeResync    = "com.github.runtime-watcher.resync"
	typeHeartbeat = "com.github.runtime-watcher.heartbeat"
)

const (
	specVersion  = "1.0"
	sourcePrefix = "/runtimes/"
	// maxBatchEvents and maxBatchBody bound a batch.
	maxBatchEvents = 500
	maxBatchBody   = 256 << 10
	// maxAttribute bounds the attributes of an event and the texts of a heartbeat, in bytes.
	maxAttribute = 512
)

// envelope has the attributes of an event of v3, a CloudEvent in JSON. Its extensions are the
// documented "sequence" and "distributed tracing", and epoch.
type envelope struct {
	claim       *claim
	kind        string
	id          string
	subject     string
	time        time.Time
	sequence    uint64
	traceParent string
}

// claim has the attributes that all events of a batch share, as they travel.
type claim struct{ source, epoch string }

// Bounds on the content of a heartbeat: a listener keeps it. A sender cuts to them.
const (
	maxReasons      = 32
	maxFingerprints = 64
	// reasonOther is the drop reason under which a heartbeat counts those that it has no room for.
	reasonOther = "other"
)

// heartbeatData is a heartbeat as it travels, with durations in milliseconds. It has the fields of
// [core.Heartbeat], so that each converts to the other.
type heartbeatData struct {
	ID                     string           `json:"-"`
	Time                   time.Time        `json:"-"`
	Number                 uint64           `json:"number"`
	Interval               time.Duration    `json:"intervalMs"`
	Instance               string           `json:"instance,omitempty"`
	Leaving                bool             `json:"leaving,omitempty"`
	Sequence               uint64           `json:"sequence"`
	Pending                int64            `json:"pending"`
	OldestPending          time.Duration    `json:"oldestPendingMs"`
	Dropped                map[string]int64 `json:"dropped,omitempty"`
	Version                string           `json:"version,omitempty"`
	CertificateFingerprint string           `json:"certificateFingerprint,omitempty"`
	CertificateExpiry      time.Time        `json:"certificateExpiry,omitzero"`
	CAFingerprints         []string         `json:"caFingerprints,omitempty"`
	KeyMaterialError       string           `json:"keyMaterialError,omitempty"`
	Canary                 core.CanaryState `json:"canary,omitempty"`
	LastReview             time.Time        `json:"lastReview,omitzero"`
	WebhookFailures        int64            `json:"webhookFailures,omitempty"`
	ConfigHash             string           `json:"configHash,omitempty"`
	ConfigError            string           `json:"configError,omitempty"`
}

// maxName is the longest name of a Kubernetes object, a DNS-1123 subdomain at most.
const maxName = 253

// bodyV2 is the body of contract v2. Its mixed case is that of deployed agents.
type bodyV2 struct {
	Watched    wireName `json:"watched"`
	WatchedGVK gvk      `json:"watchedGvk"`
}

type bodyV1 struct {
	Owner wireName `json:"owner"`
	bodyV2
}

type wireName struct {
	Namespace string `json:"Namespace"`
	Name      string `json:"Name"`
}

type gvk struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// resyncV2 encodes a resync in the contracts that have no word for it. Consumers that read the
// owner or the certificate only see an ordinary event. It names no object of a runtime, as a
// Watcher has a namespace.
func resyncV2() bodyV2 {
	return bodyV2{
		Watched:    wireName{Name: "resync"},
		WatchedGVK: gvk{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Watcher"},
	}
}
