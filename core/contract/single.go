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

// resyncV2 is how a resync travels where the contract has no word for it: today's consumers look at the owner or the
// certificate only, and see an ordinary event. No object of a runtime can be meant, as a Watcher has a namespace.
func resyncV2() bodyV2 {
	return bodyV2{
		Watched:    wireName{Name: core.KindResync.String()},
		WatchedGVK: gvk{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Watcher"},
	}
}

func encodeSingle(v Version, event *core.WatchEvent) ([]byte, error) {
	watched, err := toBody(event)
	if err != nil {
		return nil, err
	}

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

func toBody(event *core.WatchEvent) (bodyV2, error) {
	switch event.Kind {
	case core.KindChanged:
		return bodyV2{Watched: wireName(event.Watched), WatchedGVK: gvk(event.WatchedGVK)}, nil
	case core.KindResync:
		return resyncV2(), nil
	case core.KindHeartbeat:
	}

	return bodyV2{}, fmt.Errorf("%w: contracts v1 and v2 can not carry an event of kind %s", ErrMalformed, event.Kind)
}

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	var decoded bodyV1

	// In v2 an owner is a field like any other that is not known, whatever it is.
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
		return core.WatchEvent{Kind: core.KindResync, Owner: owner}
	}

	return core.WatchEvent{
		Owner:      owner,
		Watched:    types.NamespacedName(body.Watched),
		WatchedGVK: schema.GroupVersionKind(body.WatchedGVK),
	}
}

// check holds what both ends demand of an event: a hint that names nothing reaches nobody.
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
