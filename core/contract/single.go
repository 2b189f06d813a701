package contract

import (
	"cmp"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// maxName is the longest name of a Kubernetes object, a DNS-1123 subdomain at most.
const maxName = 253

// bodyV2 is the body of contract v2. Its mixed case is what is deployed.
type bodyV2 struct {
	Watched    wireName `json:"watched"`
	WatchedGVK gvk      `json:"watchedGvk"`
}

// bodyV1 is the body of contract v1.
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

// encodeSingle encodes the first event that the contract can express.
func encodeSingle(v Version, batch *core.Batch) (r Request) {
	for i := range batch.Events {
		body, err := encodeEvent(v, &batch.Events[i].WatchEvent)
		if err != nil {
			r.fail(i, err)

			continue
		}

		r.Body, r.Sent = body, []int{i}
		r.failFrom(i+1, len(batch.Events))

		break
	}

	return r
}

func encodeEvent(v Version, event *core.WatchEvent) ([]byte, error) {
	watched := toBody(event)

	var body any = watched
	if v.NeedsOwner() {
		body = bodyV1{Owner: wireName(event.Owner), bodyV2: watched}
	}

	if err := check(v, event.Owner, watched); err != nil {
		return nil, err
	}

	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}

	return encoded, nil
}

func toBody(event *core.WatchEvent) bodyV2 {
	if event.Resync {
		return resyncV2()
	}

	return bodyV2{Watched: wireName(event.Watched), WatchedGVK: gvk(event.WatchedGVK)}
}

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	var decoded bodyV1

	// In v2 an owner is an unknown field, which is ignored.
	var into any = &decoded.bodyV2
	if v.NeedsOwner() {
		into = &decoded
	}

	if err := json.Unmarshal(body, into); err != nil {
		return core.WatchEvent{}, fmt.Errorf("%w: want an event of contract %s in JSON: %w", ErrMalformed, v, err)
	}

	owner := types.NamespacedName(decoded.Owner)
	if err := check(v, owner, decoded.bodyV2); err != nil {
		return core.WatchEvent{}, err
	}

	return fromBody(owner, decoded.bodyV2), nil
}

func fromBody(owner types.NamespacedName, body bodyV2) core.WatchEvent {
	if body == resyncV2() {
		return core.WatchEvent{Resync: true, Owner: owner}
	}

	return core.WatchEvent{
		Owner:      owner,
		Watched:    types.NamespacedName(body.Watched),
		WatchedGVK: schema.GroupVersionKind(body.WatchedGVK),
	}
}

// check is the validation of an event at both ends.
func check(v Version, owner types.NamespacedName, body bodyV2) error {
	var errOwner error
	if v.NeedsOwner() {
		errOwner = cmp.Or(
			checkName("owner.Namespace", owner.Namespace, true),
			checkName("owner.Name", owner.Name, true))
	}

	return cmp.Or(
		errOwner,
		checkName("watched.Namespace", body.Watched.Namespace, false),
		checkName("watched.Name", body.Watched.Name, true),
		checkName("watchedGvk.group", body.WatchedGVK.Group, false),
		checkName("watchedGvk.version", body.WatchedGVK.Version, false),
		checkName("watchedGvk.kind", body.WatchedGVK.Kind, true))
}

func checkName(field, name string, required bool) error {
	switch {
	case required && name == "":
		return fmt.Errorf("%w: %s is empty", ErrMalformed, field)
	case len(name) > maxName:
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrMalformed, field, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, field)
	default:
		return nil
	}
}
