package contract

import (
	"cmp"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// bodyV2 is the body of contract v2. Its mixed case is the same as in deployed agents.
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

// part ignores an owner in v2, where it is an unknown field.
func (b *bodyV1) part(v Version) any {
	if v.NeedsOwner() {
		return b
	}
	return &b.bodyV2
}

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	var decoded bodyV1
	if err := json.Unmarshal(body, decoded.part(v)); err != nil {
		return core.WatchEvent{}, fmt.Errorf("%w: want an event of contract %s in JSON: %w", errMalformed, v, err)
	}
	if err := decoded.checkNames(v); err != nil {
		return core.WatchEvent{}, err
	}

	owner := types.NamespacedName(decoded.Owner)
	if decoded.bodyV2 == resyncV2() {
		return core.WatchEvent{Resync: true, Owner: owner}, nil
	}

	return core.WatchEvent{
		Owner:      owner,
		Watched:    types.NamespacedName(decoded.Watched),
		WatchedGVK: schema.GroupVersionKind(decoded.WatchedGVK),
	}, nil
}

// encodeSingle sends the first event that the contract can express. The events behind it wait for
// the next request.
func encodeSingle(v Version, batch *core.Batch) (r Request) {
	for i := range batch.Events {
		body, err := encodeEvent(v, &batch.Events[i].WatchEvent)
		if err != nil {
			r.failEvent(i, err)
			continue
		}

		r.Body = body
		r.Sent = []int{i}
		r.failFrom(i+1, len(batch.Events))
		break
	}
	return r
}

func encodeEvent(v Version, event *core.WatchEvent) ([]byte, error) {
	body := bodyV1{wireName(event.Owner), bodyV2{wireName(event.Watched), gvk(event.WatchedGVK)}}
	if event.Resync {
		body.bodyV2 = resyncV2()
	}
	if err := body.checkNames(v); err != nil {
		return nil, err
	}
	return json.Marshal(body.part(v))
}

func (b *bodyV1) checkNames(v Version) error {
	var errOwner error
	if v.NeedsOwner() {
		errOwner = cmp.Or(
			checkName("owner.Namespace", b.Owner.Namespace, true),
			checkName("owner.Name", b.Owner.Name, true))
	}

	return cmp.Or(
		errOwner,
		checkName("watched.Namespace", b.Watched.Namespace, false),
		checkName("watched.Name", b.Watched.Name, true),
		checkName("watchedGvk.group", b.WatchedGVK.Group, false),
		checkName("watchedGvk.version", b.WatchedGVK.Version, false),
		checkName("watchedGvk.kind", b.WatchedGVK.Kind, true))
}
