package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	apiutil "github.com/cert-manager/cert-manager/pkg/api/util"
	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// storyOfFaults returns the lines of another story, in which the operator is killed in each line.
func (d *demo) storyOfFaults() []line {
	return slices.Concat(d.installation(), []line{
		{"a user deletes the webhook", "there again when the operator starts", d.deleteWebhook, d.isRepaired, later},
		{"runtime-2 is cut, keda is 3.0.0", "its Kyma says so", d.cutAndRelease, d.isIn(v1beta2.Error), later},
		{"runtime-2 is back", "rolled out", d.restore, d.runs("3.0.0"), later},
		{"the certificate of runtime-2 rotates", "its agents use the new one", d.rotate, d.hasRotated, later},
		{"a user edits the Deployment", "corrected", d.edits(second), d.runs("3.0.0"), soon},
		{"two users enable a module at once", "both are there", d.enableByTwo, d.runsBoth, soon},
		{"runtime-2 is cut off, its Kyma deleted", "the Kyma waits", d.cutAndDelete, d.isIn(v1beta2.Deleting), later},
		{"runtime-2 is back", "runtime-2 is as clean as before", d.restore, d.isClean, later},
	})
}

// crash kills the operator at a random moment of its work, and starts it again.
func (d *demo) crash(ctx context.Context) error {
	if !d.faults {
		return nil
	}
	const most = 400 * time.Millisecond
	select {
	case <-time.After(rand.N(most)): //nolint:gosec // Jitter is not a secret.
	case <-ctx.Done():
		return ctx.Err()
	}
	d.KillOperator()
	return d.StartOperator(ctx)
}

func (d *demo) cutAndRelease(ctx context.Context) error {
	d.Runtimes[second].Cut()
	return d.ApplyFile(ctx, "samples/keda-3.0.0.yaml")
}

func (d *demo) cutAndDelete(ctx context.Context) error {
	d.Runtimes[second].Cut()
	return d.Plane.Delete(ctx, kymaOf(second))
}

func (d *demo) restore(context.Context) error { return d.Runtimes[second].Restore() }

// isIn returns a function that reports whether the Kyma in the control plane is in a state.
func (d *demo) isIn(state v1beta2.State) func(context.Context) bool {
	return func(ctx context.Context) bool {
		kyma, err := d.planeKyma(ctx, second)
		return err == nil && kyma.Status.State == state
	}
}

// identity is the client certificate of the second runtime, and its Secret.
var identity = client.ObjectKey{Namespace: "kcp-system", Name: second + "-watcher-tls"}

// rotate makes cert-manager issue the certificate again, and the operator install it at once.
func (d *demo) rotate(ctx context.Context) error {
	before, now, certificate := &corev1.Secret{}, &corev1.Secret{}, &certv1.Certificate{}
	readErr := d.Plane.Get(ctx, identity, before)
	_ = machine.Poll(ctx, func() bool { // Others write the Certificate, too.
		_ = d.Plane.Get(ctx, identity, certificate)
		apiutil.SetCertificateCondition(certificate, certificate.Generation, certv1.CertificateConditionIssuing,
			cmmeta.ConditionTrue, "Demo", "a new certificate is asked for")
		return d.Plane.Status().Update(ctx, certificate) == nil
	})
	err := machine.Poll(ctx, func() bool {
		err := d.Plane.Get(ctx, identity, now)
		return err == nil && !bytes.Equal(now.Data[corev1.TLSCertKey], before.Data[corev1.TLSCertKey])
	})
	return errors.Join(readErr, err, d.repair(ctx))
}

// hasRotated reports whether both agents have come with the certificate of the control plane.
func (d *demo) hasRotated(ctx context.Context) bool {
	certificate := &certv1.Certificate{}
	if err := d.Plane.Get(ctx, identity, certificate); err != nil || certificate.Status.NotAfter == nil {
		return false
	}
	fleet, err := d.Fleet(ctx, second)
	return err == nil && len(fleet) == 2 && !slices.ContainsFunc(fleet, func(f lab.Freshness) bool {
		return len(f.Replicas) != 2 || slices.ContainsFunc(f.Replicas, func(r lab.Replica) bool {
			return r.CertificateExpiry.Before(certificate.Status.NotAfter.Time)
		})
	})
}

// enableByTwo applies one module for each of two users.
func (d *demo) enableByTwo(ctx context.Context) error {
	return errors.Join(
		d.applyModule(ctx, "first-user", map[string]any{"name": "keda"}),
		d.applyModule(ctx, "second-user", map[string]any{"name": "logger", "channel": "fast"}))
}

func (d *demo) applyModule(ctx context.Context, user string, module map[string]any) error {
	kyma := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1beta2.GroupVersion().String(), "kind": "Kyma",
		"metadata": map[string]any{"namespace": "kyma-system", "name": "default"},
		"spec":     map[string]any{"modules": []any{module}},
	}}
	return d.Runtimes[second].Apply(ctx, client.ApplyConfigurationFromUnstructured(kyma), client.FieldOwner(user))
}

func (d *demo) runsBoth(ctx context.Context) bool {
	key := client.ObjectKey{Namespace: "logger", Name: "logger"}
	return d.runs("3.0.0")(ctx) && d.Runtimes[second].Get(ctx, key, &appsv1.Deployment{}) == nil
}
