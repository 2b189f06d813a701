package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// Bounds on the content of a heartbeat: a listener keeps it. A sender cuts to them.
const (
	maxReasons      = 32
	maxFingerprints = 64
	// reasonOther is the drop reason under which a heartbeat counts those that it has no room for.
	reasonOther = "other"
)

type heartbeatData struct {
	Number                 uint64           `json:"number"`
	IntervalMS             int64            `json:"intervalMs"`
	Instance               string           `json:"instance,omitempty"`
	Leaving                bool             `json:"leaving,omitempty"`
	Sequence               uint64           `json:"sequence"`
	Pending                int64            `json:"pending"`
	OldestPendingMS        int64            `json:"oldestPendingMs"`
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
}

// encodeHeartbeat encodes the heartbeat of a batch, cut to the bounds.
func encodeHeartbeat(batch *core.Batch) ([]byte, error) {
	beat := cut(batch.Heartbeat)

	if err := checkID(beat.ID); err != nil {
		return nil, err
	}

	c := newCloudEvent(batch, beat.ID, beat.Time)
	c.Type, c.Data = TypeHeartbeat, fromHeartbeat(&beat)

	return marshal(&c)
}

// cut returns a heartbeat within the bounds. Foreign texts, such as an error, may be long.
func cut(beat *core.Heartbeat) core.Heartbeat {
	c := *beat

	for _, text := range []*string{
		&c.Instance, &c.Version, &c.CertificateFingerprint, &c.KeyMaterialError, (*string)(&c.Canary), &c.ConfigHash,
	} {
		*text = cutText(*text)
	}

	c.CertificateExpiry, c.LastReview = wireTime(c.CertificateExpiry), wireTime(c.LastReview)
	c.CAFingerprints = cutFingerprints(c.CAFingerprints)
	c.Dropped = cutReasons(c.Dropped)

	return c
}

func cutText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxAttribute)], "")
}

func cutFingerprints(fingerprints []string) []string {
	kept := slices.Clone(fingerprints[:min(len(fingerprints), maxFingerprints)])
	for i := range kept {
		kept[i] = cutText(kept[i])
	}

	return kept
}

// cutReasons keeps the sum of the counts: reasons without room are counted under [reasonOther].
func cutReasons(dropped map[string]int64) map[string]int64 {
	if fits(dropped) {
		return dropped
	}

	kept := make(map[string]int64, maxReasons)

	for _, reason := range slices.Sorted(maps.Keys(dropped)) {
		if isAttribute(reason) && len(kept) < maxReasons-1 {
			kept[reason] += dropped[reason]
		} else {
			kept[reasonOther] += dropped[reason]
		}
	}

	return kept
}

func fits(dropped map[string]int64) bool {
	for reason := range dropped {
		if !isAttribute(reason) {
			return false
		}
	}

	return len(dropped) <= maxReasons
}

func readHeartbeat(data []byte) (*core.Heartbeat, error) {
	var beat heartbeatData

	if len(data) > 0 {
		if err := json.Unmarshal(data, &beat); err != nil {
			return nil, fmt.Errorf("heartbeat: %w", err)
		}
	}

	if err := beat.check(); err != nil {
		return nil, err
	}

	return beat.heartbeat(), nil
}

func (d *heartbeatData) check() error {
	if len(d.Dropped) > maxReasons || len(d.CAFingerprints) > maxFingerprints {
		return fmt.Errorf("%w: %d reasons and %d CA fingerprints, want at most %d and %d",
			ErrMalformed, len(d.Dropped), len(d.CAFingerprints), maxReasons, maxFingerprints)
	}

	texts := append([]string{
		d.Instance, d.Version, d.CertificateFingerprint, d.KeyMaterialError, string(d.Canary), d.ConfigHash,
	}, d.CAFingerprints...)

	for _, text := range slices.AppendSeq(texts, maps.Keys(d.Dropped)) {
		if len(text) > maxAttribute {
			return fmt.Errorf("%w: a heartbeat has a text of %d bytes, want at most %d",
				ErrMalformed, len(text), maxAttribute)
		}
	}

	return nil
}

func fromHeartbeat(beat *core.Heartbeat) *heartbeatData {
	return &heartbeatData{
		Number:                 beat.Number,
		IntervalMS:             beat.Interval.Milliseconds(),
		Instance:               beat.Instance,
		Leaving:                beat.Leaving,
		Sequence:               beat.Sequence,
		Pending:                beat.Pending,
		OldestPendingMS:        beat.OldestPending.Milliseconds(),
		Dropped:                beat.Dropped,
		Version:                beat.Version,
		CertificateFingerprint: beat.CertificateFingerprint,
		CertificateExpiry:      beat.CertificateExpiry,
		CAFingerprints:         beat.CAFingerprints,
		KeyMaterialError:       beat.KeyMaterialError,
		Canary:                 beat.Canary,
		LastReview:             beat.LastReview,
		WebhookFailures:        beat.WebhookFailures,
		ConfigHash:             beat.ConfigHash,
	}
}

func (d *heartbeatData) heartbeat() *core.Heartbeat {
	return &core.Heartbeat{
		Number:                 d.Number,
		Interval:               milliseconds(d.IntervalMS),
		Instance:               d.Instance,
		Leaving:                d.Leaving,
		Sequence:               d.Sequence,
		Pending:                d.Pending,
		OldestPending:          milliseconds(d.OldestPendingMS),
		Dropped:                d.Dropped,
		Version:                d.Version,
		CertificateFingerprint: d.CertificateFingerprint,
		CertificateExpiry:      wireTime(d.CertificateExpiry),
		CAFingerprints:         d.CAFingerprints,
		KeyMaterialError:       d.KeyMaterialError,
		Canary:                 d.Canary,
		LastReview:             wireTime(d.LastReview),
		WebhookFailures:        d.WebhookFailures,
		ConfigHash:             d.ConfigHash,
	}
}

// milliseconds turns a foreign number into a duration, without overflow.
func milliseconds(n int64) time.Duration {
	const year = 365 * 24 * time.Hour

	return time.Duration(min(max(n, 0), year.Milliseconds())) * time.Millisecond
}
