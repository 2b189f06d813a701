package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// ReasonInstalled is the reason of the condition of an agent that answers.
const ReasonInstalled installation.Reason = "Installed"

// ReportCondition returns a function for [Options.Report]. The function maintains a condition with
// the given type in status.conditions of the objects: True with the reason Installed, or False with
// the reason of the status. The kind must have a status subresource and conditions in the form of
// metav1.Condition. The operator needs the right to patch the status subresource.
//
// The client should not read the kind from a cache: use a client from client.New. A condition is
// read and written only when it changes. It is read again after an hour.
func ReportCondition(
	c client.Client, conditionType string,
) func(ctx context.Context, object client.Object, status installation.Status) error {
	return (&conditions{client: c, kind: conditionType, written: cache.NewExpiring()}).report
}

// conditions write one condition of each object. They may be used concurrently.
type conditions struct {
	client  client.Client
	kind    string
	written *cache.Expiring // of metav1.Condition, by the key of the object
}

// writeAgainAfter is the time after which a condition is corrected that another writer has changed
// or removed.
const writeAgainAfter = time.Hour

func (w *conditions) report(ctx context.Context, object client.Object, status installation.Status) error {
	key := client.ObjectKeyFromObject(object)
	wanted := w.conditionOf(object, status)
	last, _ := w.written.Get(key)
	if last == wanted {
		return nil
	}

	if err := w.correct(ctx, object, wanted); err != nil {
		return fmt.Errorf("condition %s: %w", w.kind, err)
	}
	w.written.Set(key, wanted, writeAgainAfter)
	if status.State == installation.Removed { // The object ends.
		w.written.Delete(key)
	}
	return nil
}

// correct reads the object, which may be missing.
func (w *conditions) correct(ctx context.Context, object client.Object, wanted metav1.Condition) error {
	gvk, err := apiutil.GVKForObject(object, w.client.Scheme())
	if err != nil {
		return err
	}

	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(w.write(ctx, live, wanted))
}

func (w *conditions) conditionOf(object client.Object, status installation.Status) metav1.Condition {
	ready := metav1.ConditionFalse
	switch status.State {
	case installation.Ready:
		ready = metav1.ConditionTrue
		status = installed(status)
	case installation.Removed:
		status.Reason = installation.Reason(status.State)
		status.Message = "the agent is removed"
	case installation.Progressing, installation.Failed:
	}

	return metav1.Condition{
		Type: w.kind, Status: ready, Reason: string(status.Reason), Message: status.Message,
		ObservedGeneration: object.GetGeneration(),
	}
}

// write replaces the list of conditions, so it fails when another writer has changed the object.
func (w *conditions) write(ctx context.Context, live *unstructured.Unstructured, wanted metav1.Condition) error {
	var stored struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, &stored); err != nil {
		return err
	}

	if !meta.SetStatusCondition(&stored.Status.Conditions, wanted) {
		return nil
	}

	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": live.GetResourceVersion()}, "status": stored.Status,
	})
	if err != nil {
		return err
	}
	return w.client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, patch))
}

// installed returns the status of an agent that answers, with a reason and a message for people.
func installed(status installation.Status) installation.Status {
	status.Reason = ReasonInstalled
	status.Message = fmt.Sprintf("the agent answers, with %d of %d replicas", status.Available, status.Replicas)
	if status.Notice != "" {
		status.Message += "; " + status.Notice
	}
	return status
}
