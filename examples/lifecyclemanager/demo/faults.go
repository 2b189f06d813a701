package main

import (
	"bytes"
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

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/api/v1beta2"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// storyOfFaults returns the lines of another story, in which the operator is killed in each line.
func (d *demo) storyOfFaults() []line {
	return slices.Concat(d.installation(), []line{
		{"a user deletes the webhook", "there again when the operator starts", d.deleteWebhook, d.isRepaired, later},
		{
			"runtime-2 is cut, keda is 3.0.0", "its Kyma says so",
			d.cutAndRelease, d.planeReads(second, v1beta2.Error, ""), later,
		},
		{"runtime-2 is back", "rolled out", d.restoreRuntime, d.runsVersion(second, "3.0.0"), later},
		{
			"the certificate of runtime-2 rotates", "its agents use the new one",
			d.rotateCertificate, d.hasRotated, later,
		},
		{"a user edits the Deployment", "corrected", d.editsDeployment(second), d.runsVersion(second, "3.0.0"), soon},
		{"two users enable a module at once", "both are there", d.enableByTwo, d.runsBoth, soon},
		{
			"runtime-2 is cut off, its Kyma deleted", "the Kyma waits",
			d.cutAndDelete(second), d.planeReads(second, v1beta2.Deleting, ""), later,
		},
		{"runtime-2 is back", "runtime-2 is as clean as before", d.restoreRuntime, d.isClean, later},
	})
}

// crashOperator kills the operator at a random moment of its work, and starts it again.
func (d *demo) crashOperator() {
	if !d.faults {
		return
	}

	const most = 400 * time.Millisecond
	select {
	case <-time.After(rand.N(most)): //nolint:gosec // Jitter is not a secret.
	case <-d.Context().Done():
	}

	d.KillOperator()
	d.StartOperator()
}

func (d *demo) cutAndRelease() {
	d.Runtimes[second].Refuse()
	d.addsModules("keda-3.0.0")()
}

func (d *demo) restoreRuntime() { rig.NoError(d, d.Runtimes[second].Open()) }

// identity is the client certificate of the second runtime, and its Secret.
var identity = client.ObjectKey{Namespace: "kcp-system", Name: second + "-watcher-tls"}

// rotateCertificate makes cert-manager issue the certificate again, and the operator install it
// immediately.
func (d *demo) rotateCertificate() {
	before := &corev1.Secret{}
	rig.NoError(d, d.Plane.Get(d.Context(), identity, before))

	certificate := &certv1.Certificate{}
	d.Eventually("a new certificate is asked for", func() bool { // Others write the Certificate, too.
		_ = d.Plane.Get(d.Context(), identity, certificate)
		apiutil.SetCertificateCondition(certificate, certificate.Generation, certv1.CertificateConditionIssuing,
			cmmeta.ConditionTrue, "Demo", "a new certificate is asked for")
		return d.Plane.Status().Update(d.Context(), certificate) == nil
	})

	now := &corev1.Secret{}
	d.Eventually("the certificate is new", func() bool {
		err := d.Plane.Get(d.Context(), identity, now)
		return err == nil && !bytes.Equal(now.Data[corev1.TLSCertKey], before.Data[corev1.TLSCertKey])
	})

	// The operator reconciles the installation immediately, instead of after 10 minutes.
	d.patchKyma(`{"metadata": {"annotations": {"repaired": %q}}}`, time.Now().Format(time.RFC3339))
}

// hasRotated reports whether both agents have come with the certificate of the control plane.
func (d *demo) hasRotated() bool {
	certificate := &certv1.Certificate{}
	if err := d.Plane.Get(d.Context(), identity, certificate); err != nil || certificate.Status.NotAfter == nil {
		return false
	}

	isOld := func(r fleet.Replica) bool { return r.CertificateExpiry.Before(certificate.Status.NotAfter.Time) }
	return d.forBoth(second, func(s fleet.Status) bool {
		return len(s.Replicas) == 2 && !slices.ContainsFunc(s.Replicas, isOld)
	})
}

// enableByTwo applies one module for each of two users.
func (d *demo) enableByTwo() {
	d.applyModule("first-user", map[string]any{"name": "keda"})
	d.applyModule("second-user", map[string]any{"name": "logger", "channel": "fast"})
}

func (d *demo) applyModule(user string, module map[string]any) {
	kyma := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1beta2.GroupVersion().String(), "kind": "Kyma",
		"metadata": map[string]any{"namespace": "kyma-system", "name": "default"},
		"spec":     map[string]any{"modules": []any{module}},
	}}
	applied := client.ApplyConfigurationFromUnstructured(kyma)
	rig.NoError(d, d.Runtimes[second].Apply(d.Context(), applied, client.FieldOwner(user)))
}

func (d *demo) runsBoth() bool {
	key := client.ObjectKey{Namespace: "logger", Name: "logger"}
	return d.runsVersion(second, "3.0.0")() && d.Runtimes[second].Get(d.Context(), key, &appsv1.Deployment{}) == nil
}
