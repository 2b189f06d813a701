package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
)

// reasonInstalled is the reason of a condition, and of an Event, for a runtime that is ready.
const reasonInstalled = "Installed"

// ReportCondition returns a function for [Options.Report]. It keeps a condition of that type in
// status.conditions of the objects: True with the reason Installed, or False with the reason of the
// status. The kind must have a status subresource, and conditions in the form of metav1.Condition.
// The operator needs the right to patch it.
//
// The client should not be a cache of the kind, such as client.New makes it. A condition is read
// and written only when it changes, and read again after an hour.
func ReportCondition(
	c client.Client, conditionType string,
) func(ctx context.Context, object client.Object, status installation.Status) error {
	return (&conditions{client: c, kind: conditionType}).report
}

type conditions struct {
	client  client.Client
	kind    string
	written sync.Map // of writtenOnce, by the key of the object
}

type writtenOnce struct {
	metav1.Condition

	at time.Time
}

// writeAgainAfter is the time after which a condition is corrected that another writer has changed
// or removed.
const writeAgainAfter = time.Hour

func (w *conditions) report(ctx context.Context, object client.Object, status installation.Status) error {
	key, wanted := client.ObjectKeyFromObject(object), w.condition(object, status)
	known, _ := w.written.Load(key)
	last, _ := known.(writtenOnce)
	if last.Condition == wanted && time.Since(last.at) < writeAgainAfter {
		return nil
	}
	gvk, err := apiutil.GVKForObject(object, w.client.Scheme())
	if err != nil {
		return fmt.Errorf("condition %s: %w", w.kind, err)
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	err = w.client.Get(ctx, key, live)
	if err == nil {
		err = w.write(ctx, live, wanted)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("condition %s: %w", w.kind, err)
	}
	w.written.Store(key, writtenOnce{wanted, time.Now()})
	if status.State == installation.Removed { // The object ends.
		w.written.Delete(key)
	}
	return nil
}

func (w *conditions) condition(object client.Object, status installation.Status) metav1.Condition {
	ready := metav1.ConditionFalse
	switch status.State {
	case installation.Ready:
		ready, status = metav1.ConditionTrue, installed(status)
	case installation.Removed:
		status.Reason, status.Message = string(status.State), "the agent is removed"
	case installation.Progressing, installation.Failed:
	}
	return metav1.Condition{
		Type: w.kind, Status: ready, Reason: status.Reason, Message: status.Message,
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
