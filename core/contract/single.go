package contract

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// maxName is the longest name of a Kubernetes object, a DNS-1123 subdomain at most.
const maxName = 253

// singleEvent is the body of v1, and without owner that of v2. Its mixed case is what is deployed.
type singleEvent struct {
	Owner      *types.NamespacedName `json:"owner,omitempty"`
	Watched    types.NamespacedName  `json:"watched"`
	WatchedGVK gvk                   `json:"watchedGvk"` //nolint:tagliatelle // The wire's spelling.
}

type gvk struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

func encodeSingle(v Version, event *core.WatchEvent) ([]byte, error) {
	if err := check(v, event); err != nil {
		return nil, err
	}

	single := singleEvent{Watched: event.Watched, WatchedGVK: gvk(event.WatchedGVK)}
	if v.NeedsOwner() {
		single.Owner = &event.Owner
	}

	body, err := json.Marshal(single)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}

	return body, nil
}

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	var single singleEvent
	if err := json.Unmarshal(body, &single); err != nil {
		return core.WatchEvent{}, fmt.Errorf("%w: want an event of contract %s in JSON: %w", ErrMalformed, v, err)
	}

	event := core.WatchEvent{Watched: single.Watched, WatchedGVK: schema.GroupVersionKind(single.WatchedGVK)}
	if v.NeedsOwner() && single.Owner != nil {
		event.Owner = *single.Owner
	}

	return event, check(v, &event)
}

// check holds what both ends demand of an event: a hint that names nothing reaches nobody.
func check(v Version, event *core.WatchEvent) error {
	if v.NeedsOwner() {
		if err := checkName("owner.Name", event.Owner.Name, true); err != nil {
			return err
		}

		if err := checkName("owner.Namespace", event.Owner.Namespace, true); err != nil {
			return err
		}
	}

	if err := checkName("watched.Name", event.Watched.Name, true); err != nil {
		return err
	}

	if err := checkName("watched.Namespace", event.Watched.Namespace, false); err != nil {
		return err
	}

	return checkName("watchedGvk.kind", event.WatchedGVK.Kind, true)
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
