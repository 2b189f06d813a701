package contract

import (
	"cmp"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// checkEvent is for both sides: a sender encodes no event that a receiver would refuse.
func checkEvent(event *core.Numbered) error {
	if err := checkID(event.ID); err != nil {
		return err
	}
	if event.Resync {
		return checkOwner(&event.WatchEvent)
	}
	return cmp.Or(checkOwner(&event.WatchEvent), checkWatched(&event.WatchEvent))
}

func checkID(id string) error {
	if id == "" {
		return fmt.Errorf("%w: id is empty", errMalformed)
	}
	return checkAttribute("id", id)
}

func checkOwner(event *core.WatchEvent) error {
	return cmp.Or(
		checkName("owner.namespace", event.Owner.Namespace, event.Owner.Name != ""),
		checkName("owner.name", event.Owner.Name, event.Owner.Namespace != ""))
}

func checkWatched(event *core.WatchEvent) error {
	return cmp.Or(
		checkName("watched.namespace", event.Watched.Namespace, false),
		checkName("watched.name", event.Watched.Name, true),
		checkName("watchedGvk.group", event.WatchedGVK.Group, false),
		checkName("watchedGvk.version", event.WatchedGVK.Version, false),
		checkName("watchedGvk.kind", event.WatchedGVK.Kind, true),
		checkName("operation", string(event.Operation), false),
		checkName("field", string(event.Field), false),
		checkName("uid", string(event.UID), false))
}

func checkName(field, name string, required bool) error {
	switch {
	case required && name == "":
		return fmt.Errorf("%w: %s is empty", errMalformed, field)
	case len(name) > maxName:
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", errMalformed, field, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s is not UTF-8", errMalformed, field)
	default:
		return nil
	}
}

func checkAttribute(name, value string) error {
	if isAttribute(value) {
		return nil
	}
	return fmt.Errorf("%w: attribute %s has %d bytes, want at most %d of UTF-8",
		errMalformed, name, len(value), maxAttribute)
}

func isAttribute(value string) bool { return len(value) <= maxAttribute && utf8.ValidString(value) }

// wireTime returns t, and no time when RFC 3339 cannot express it: a time is informative.
func wireTime(t time.Time) time.Time {
	const lastYear = 9999
	t = t.UTC()
	if t.Year() < 0 || t.Year() > lastYear {
		return time.Time{}
	}
	return t
}

func textsOf(b *core.Heartbeat) []*string {
	return []*string{
		&b.Instance, &b.Version, &b.CertificateFingerprint, &b.KeyMaterialError, (*string)(&b.Canary), &b.ConfigHash,
		&b.ConfigError, &b.CanaryError, &b.WebhookError, (*string)(&b.Interruption.Reason), &b.Interruption.Error,
	}
}

// timesOf returns the times in the data of a heartbeat. The time of the heartbeat is an attribute.
func timesOf(b *core.Heartbeat) []*time.Time {
	return []*time.Time{&b.CertificateExpiry, &b.LastReview, &b.Interruption.Since, &b.Interruption.Until}
}
