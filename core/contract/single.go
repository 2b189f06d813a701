package contract

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/rawjson"
)

func decodeSingle(v Version, body []byte) (core.WatchEvent, error) {
	decoded, err := readSingle(v, body)
	if err != nil {
		return core.WatchEvent{}, fmt.Errorf("%w: want an event of contract %s in JSON: %w", errMalformed, v, err)
	}
	owner := types.NamespacedName(decoded.Owner)
	if err := check(v, owner, decoded.bodyV2); err != nil {
		return core.WatchEvent{}, err
	}
	return fromBody(owner, decoded.bodyV2), nil
}

// readSingle reads a body as encoding/json does, which also takes names in another case. A body
// without such names is read in half the time.
func readSingle(v Version, body []byte) (bodyV1, error) {
	var decoded bodyV1
	if decoded.read(v, body) == nil {
		return decoded, nil
	}
	decoded = bodyV1{}
	// In v2 an owner is an unknown field, which is ignored.
	var into any = &decoded.bodyV2
	if v.NeedsOwner() {
		into = &decoded
	}
	err := json.Unmarshal(body, into)
	return decoded, err
}

// errUnusual means that encoding/json must read the body.
var errUnusual = errors.New("unusual name")

func (b *bodyV1) read(v Version, body []byte) error {
	r := rawjson.NewReader(body)
	err := r.Object(func(name []byte) error {
		switch string(name) {
		case fieldWatched:
			return b.Watched.read(r)
		case fieldWatchedGVK:
			return b.WatchedGVK.read(r)
		case fieldOwner:
			if v.NeedsOwner() {
				return b.Owner.read(r)
			}
		}
		return errUnusual
	})
	if err != nil {
		return err
	}
	return r.End()
}

func (n *wireName) read(r *rawjson.Reader) error {
	return r.Object(func(name []byte) error {
		switch string(name) {
		case "Namespace":
			return readText(r, &n.Namespace)
		case "Name":
			return readText(r, &n.Name)
		default:
			return errUnusual
		}
	})
}

func (k *gvk) read(r *rawjson.Reader) error {
	return r.Object(func(name []byte) error {
		switch string(name) {
		case "group":
			return readText(r, &k.Group)
		case "version":
			return readText(r, &k.Version)
		case "kind":
			return readText(r, &k.Kind)
		default:
			return errUnusual
		}
	})
}

// readText leaves the text as it is when the value is null, as encoding/json does.
func readText(r *rawjson.Reader, into *string) (err error) {
	if r.Null() {
		return nil
	}
	*into, err = r.Text()
	return err
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
