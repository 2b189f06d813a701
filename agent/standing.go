package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
)

// standing is the relation of a configuration to the intended one.
type standing int

const (
	standsAsIntended standing = iota
	// standsChanged means that the configuration is missing, or is ours and was changed by another
	// program.
	standsChanged
	// standsOfPeer means that the configuration is complete and was written by a replica with other
	// settings.
	standsOfPeer
	// standsWithMoreCAs means that the configuration is as intended, with CAs of another replica in
	// addition to ours.
	standsWithMoreCAs
	// standsForeign means that the configuration belongs to another owner.
	standsForeign
)

// judge compares the configuration that the API server has with the intended one. The problem is
// for a report. It is "" for standsOfPeer, although the other replica may call for less: see
// lessThan.
func (w *intended) judge(live, want *webhookConfiguration) (state standing, problem string) {
	differences := admission.Differences(live)
	if live == nil {
		return standsChanged, strings.Join(differences, "; ")
	}
	isSame := live.Annotations[admission.RecordAnnotation] == want.Annotations[admission.RecordAnnotation]

	if !w.isOurs(live) {
		if isSame && len(differences) == 0 {
			return standsForeign, ""
		}
		return standsForeign, fmt.Sprintf(
			"the webhook configuration is not as intended and belongs to owner %.100q, not %q",
			live.Annotations[w.mark], w.owner)
	}
	differences = append(differences, w.changesBeyondRecord(live, want)...)
	if len(differences) > 0 {
		return standsChanged, strings.Join(differences, "; ")
	}

	hasMore := false
	isPeer := !isSame
	for n := range live.Webhooks {
		bundle := live.Webhooks[n].ClientConfig.CABundle
		switch {
		case bytes.Equal(bundle, bundleOf(want)):
		case w.verifyServing(bundle) != nil:
			return standsChanged, "caBundle changed"
		case hasAllCAs(bundle, bundleOf(want)):
			hasMore = true
		default:
			isPeer = true // A replica has read newer CAs.
		}
	}

	// An apply shows whether this API server keeps match conditions.
	mayDropConditions := w.conditions == conditionsUnknown && len(withoutConditions(live, want)) > 0
	switch {
	case isPeer || mayDropConditions:
		return standsOfPeer, ""
	case hasMore:
		return standsWithMoreCAs, ""
	default:
		return standsAsIntended, ""
	}
}

// changesBeyondRecord are the changes that [admission.Differences] accepts from an administrator,
// except for the changes of a platform. A webhook in the record may belong to a replica with other
// settings.
func (w *intended) changesBeyondRecord(live, want *webhookConfiguration) (found []string) {
	for _, name := range guestsOf(live, want) {
		found = append(found, name+" does not belong to this agent")
	}

	for n := range live.Webhooks {
		webhook := &live.Webhooks[n]
		wanted := webhookOf(want, webhook.Name)
		if wanted == nil || wanted.TimeoutSeconds == nil || webhook.TimeoutSeconds == nil {
			continue
		}
		if *webhook.TimeoutSeconds > *wanted.TimeoutSeconds {
			found = append(found, webhook.Name+": timeoutSeconds changed")
		}
	}

	if w.conditions == conditionsKept {
		for _, name := range withoutConditions(live, want) {
			found = append(found, name+": matchConditions are missing")
		}
	}

	if live.Annotations[w.mark] != w.owner {
		found = append(found, "annotation "+w.mark+" changed")
	}
	return found
}

// guestsOf returns the names of webhooks that are not of this agent. An apply would keep them, and
// a policy may refuse them.
func guestsOf(live, want *webhookConfiguration) []string {
	return slices.DeleteFunc(admission.Unrecorded(live), func(name string) bool { return webhookOf(want, name) != nil })
}

// noteConditions notes whether the API server keeps match conditions, which older API servers drop.
// The keeper calls it after each read or apply, in its goroutine.
func (w *intended) noteConditions(live, want *webhookConfiguration) {
	missing := len(withoutConditions(live, want))
	having := 0
	for n := range live.Webhooks {
		if len(live.Webhooks[n].MatchConditions) > 0 {
			having++
		}
	}

	switch {
	case missing == 0:
		w.conditions = conditionsKept
	case having == 0:
		w.conditions = conditionsDropped
	}
}

// withoutConditions names the webhooks that have lost their match conditions.
func withoutConditions(live, want *webhookConfiguration) (names []string) {
	for n := range live.Webhooks {
		webhook := &live.Webhooks[n]
		wanted := webhookOf(want, webhook.Name)
		if wanted != nil && len(wanted.MatchConditions) > 0 && len(webhook.MatchConditions) == 0 {
			names = append(names, webhook.Name)
		}
	}
	return names
}

func webhookOf(
	configuration *webhookConfiguration, name string,
) *admissionregistrationv1.ValidatingWebhook {
	for n := range configuration.Webhooks {
		if configuration.Webhooks[n].Name == name {
			return &configuration.Webhooks[n]
		}
	}
	return nil
}

// isOurs reports whether a configuration has our mark, or has lost the one that an agent wrote. The
// mark of an agent of another release is still managed by that agent, so its configuration is not
// ours. Another mark that no agent manages was written over a mark of ours.
func (w *intended) isOurs(live *webhookConfiguration) bool {
	isApplied := false
	isMarked := false
	for n := range live.ManagedFields {
		entry := &live.ManagedFields[n]
		if entry.Manager != canary.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		isApplied = true
		isMarked = isMarked || manages(entry, w.mark)
	}

	mark := live.Annotations[w.mark]
	if mark == w.owner {
		return true
	}
	hasLostMark := mark == "" || !isMarked
	return isApplied && hasLostMark
}

// manages reports whether the entry of a field manager has an annotation.
func manages(entry *metav1.ManagedFieldsEntry, annotation string) bool {
	var fields struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	}
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}

	_, has := fields.Metadata.Annotations["f:"+annotation]
	return has
}
