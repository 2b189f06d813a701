package certificates_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/core"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

var three = []core.RuntimeID{"runtime-a", "runtime-b", "runtime-c"}

func assertNoFailures(t *testing.T, lab *fleetLab) {
	t.Helper()
	if failed := lab.failures(); len(failed) > 0 {
		t.Errorf("%d requests failed, so there was a moment of mistrust: %v", len(failed), failed[0])
	}
}

// Two rotations, the second while the first is under way, with traffic: no request fails.
func TestRotationUnderTraffic(t *testing.T) {
	for _, i := range issuers() {
		t.Run(i.name, func(t *testing.T) { rotationUnderTraffic(t, i) })
	}
}

func rotationUnderTraffic(t *testing.T, i issuer) {
	t.Helper()
	lab := newLab(t, i.start(t), three...)
	set := newSet(t, lab.client, lab.confirmations())
	before := lab.secret(t.Context(), set)

	annotate(t, lab.client, set, certificates.AnnotationRotate, "first")
	lab.until(set, "the first rotation has its CA", func(s certificates.Status) bool { return s.Generation == 2 })
	annotate(t, lab.client, set, certificates.AnnotationRotate, "second")
	lab.until(set, "both rotations are over", stable(3))

	// One runtime gets its Secret late: the server waits for it.
	lab.runtimes[2].frozen.Store(true)
	annotate(t, lab.client, set, certificates.AnnotationRotate, "third")
	lab.until(set, "the third rotation waits for runtime-c", func(s certificates.Status) bool {
		return s.Phase == certificates.PhaseConfirming && slices.Equal(s.Waiting, three[2:])
	})
	lab.runtimes[2].frozen.Store(false)
	lab.until(set, "the third rotation is over", stable(4))
	lab.assertNothingLost()
	assertNoFailures(t, lab)

	after := lab.secret(t.Context(), set)
	if bytes.Equal(before[corev1.TLSCertKey], after[corev1.TLSCertKey]) {
		t.Error("the server certificate is the same")
	}

	if have := len(certificatesOf(t, after["ca.crt"])); have != 4 {
		t.Errorf("the bundle has %d CAs, want all 4 until they expire", have)
	}

	assertOneKey(t, lab.client)
}

// assertOneKey requires that the keys of retired CAs are gone.
func assertOneKey(t *testing.T, c client.Client) {
	t.Helper()
	rig.Eventually(t, patience, "only the CA that signs has a key", func() bool {
		var secrets corev1.SecretList
		if err := c.List(t.Context(), &secrets,
			client.MatchingLabels{"operator.kyma-project.io/certificate-role": "ca"}); err != nil {
			t.Fatal(err)
		}
		return len(secrets.Items) == 1
	})
}

// The Secret of the CA is deleted, and cert-manager issues another CA in its place, which no peer
// trusts. It is replaced in the order of a rotation, so that no request fails.
func TestLostCA(t *testing.T) {
	lab := newLab(t, startPlane(t), three...)
	set := newSet(t, lab.client, lab.confirmations())
	lost := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName + "-ca-1"}}

	if err := lab.client.Delete(t.Context(), lost); err != nil {
		t.Fatal(err)
	}

	rig.Eventually(t, patience, "cert-manager has issued another CA", func() bool {
		return lab.client.Get(t.Context(), client.ObjectKeyFromObject(lost), lost) == nil &&
			len(lost.Data[corev1.TLSCertKey]) > 0
	})

	// Certificates that are issued meanwhile are of the wrong CA.
	for _, name := range []string{setName + "-server", "runtime-a-watcher-tls", "runtime-b-webhook-tls"} {
		issueAgain(t, lab.client, name)
	}

	lab.until(set, "another CA signs everything", stable(2))
	lab.assertNothingLost()
	assertNoFailures(t, lab)
	assertOneKey(t, lab.client)
}

// issueAgain makes cert-manager issue a certificate, as it does before the certificate expires.
func issueAgain(t *testing.T, c client.Client, name string) {
	t.Helper()
	var before corev1.Secret

	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := c.Get(t.Context(), key, &before); err != nil {
		t.Fatal(err)
	}

	rig.Eventually(t, patience, name+" is to be issued", func() bool {
		var certificate certv1.Certificate
		if err := c.Get(t.Context(), key, &certificate); err != nil {
			t.Fatal(err)
		}

		certificate.Status.Conditions = append(certificate.Status.Conditions, certv1.CertificateCondition{
			Type: certv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "Test", Message: "It is renewed",
		})
		return c.Status().Update(t.Context(), &certificate) == nil
	})
	rig.Eventually(t, patience, name+" is issued", func() bool {
		var after corev1.Secret
		if err := c.Get(t.Context(), key, &after); err != nil {
			t.Fatal(err)
		}
		return !bytes.Equal(before.Data[corev1.TLSCertKey], after.Data[corev1.TLSCertKey])
	})
}

// A runtime that never confirms is named, and delays the switch until an annotation ends the wait.
func TestRuntimeThatNeverConfirms(t *testing.T) {
	lab := newLab(t, startPlane(t), three...)
	recorder := events.NewFakeRecorder(1000)
	set := newSet(t, lab.client, lab.confirmations(), recorder)
	lab.runtimes[1].frozen.Store(true)
	server := func() []byte { return lab.secret(t.Context(), set)[corev1.TLSCertKey] }
	first := server()

	annotate(t, lab.client, set, certificates.AnnotationRotate, "now")
	status := lab.until(set, "only runtime-b is waited for", func(s certificates.Status) bool {
		return s.Phase == certificates.PhaseConfirming && slices.Equal(s.Waiting, three[1:2])
	})
	t.Log(status.Message)

	var issuer certv1.Issuer
	if err := lab.client.Get(t.Context(), set.ClientsIssuer(), &issuer); err != nil {
		t.Fatal(err)
	}

	if reported := issuer.Annotations[certificates.AnnotationRotation]; reported != status.Message {
		t.Errorf("the Issuer reports %q, want %q", reported, status.Message)
	}

	lab.assertEvent(set, recorder, "RotationWaits", "confirm that: runtime-b")
	lab.staysUntilConfirmed(set, three[1:2])
	if !bytes.Equal(first, server()) {
		t.Error("the server has another certificate before runtime-b has confirmed the new CA")
	}

	assertNoFailures(t, lab)
	annotate(t, lab.client, set, certificates.AnnotationSwitchAnyway, "2")
	lab.until(set, "the rotation goes on without it", stable(2))
	if bytes.Equal(first, server()) {
		t.Error("the server has its first certificate after the switch")
	}

	// Its pending events are sent when it has the new bundle.
	lab.runtimes[1].frozen.Store(false)
	lab.assertNothingLost()
}

// staysUntilConfirmed reconciles for longer than the other runtimes and all waits take. Only the
// runtimes that are waited for delay the switch.
func (lab *fleetLab) staysUntilConfirmed(set *certificates.Certificates, waiting []core.RuntimeID) {
	lab.t.Helper()
	tick := time.NewTicker(propagation / 10)
	defer tick.Stop()
	for range 15 {
		<-tick.C

		status, err := set.Reconcile(lab.t.Context())
		if err != nil {
			lab.t.Fatal(err)
		}

		if status.Phase != certificates.PhaseConfirming || !slices.Equal(status.Waiting, waiting) {
			lab.t.Fatalf("got %+v, want it to wait for %v", status, waiting)
		}
	}
}

// assertEvent reconciles until there is such an Event.
func (lab *fleetLab) assertEvent(set *certificates.Certificates, recorder *events.FakeRecorder, parts ...string) {
	lab.t.Helper()
	lab.until(set, fmt.Sprintf("an Event says %q", parts), func(certificates.Status) bool {
		select {
		case event := <-recorder.Events:
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event, part) })
		default:
			return false
		}
	})
}

var errKilled = errors.New("killed")

// mortal is a client that fails after some writes, as if its process were killed.
type mortal struct {
	client.Client

	left atomic.Int64
}

func (m *mortal) write() error {
	if m.left.Add(-1) < 0 {
		return errKilled
	}
	return nil
}

func (m *mortal) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := m.write(); err != nil {
		return err
	}
	return m.Client.Apply(ctx, object, opts...)
}

func (m *mortal) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if err := m.write(); err != nil {
		return err
	}
	return m.Client.Delete(ctx, object, opts...)
}

func (m *mortal) Status() client.SubResourceWriter { return mortalStatus{m.Client.Status(), m} }

type mortalStatus struct {
	client.SubResourceWriter

	owner *mortal
}

func (m mortalStatus) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := m.owner.write(); err != nil {
		return err
	}
	return m.SubResourceWriter.Update(ctx, object, opts...)
}

// The controller is killed after its first write, its second, and so on. Each time, one without any
// state follows. The rotation still ends, and no request fails.
func TestKilledAtEveryStep(t *testing.T) {
	lab := newLab(t, startPlane(t), three...)
	annotate(t, lab.client, newSet(t, lab.client, lab.confirmations()), certificates.AnnotationRotate, "now")

	const most = 14

	var kills int
	for round := 0; ; round++ {
		one := &mortal{Client: lab.client}
		one.left.Store(int64(round % most))

		status, err := newSet(t, one, lab.confirmations()).Reconcile(t.Context())
		if errors.Is(err, errKilled) {
			kills++
			continue
		}

		if err != nil {
			t.Fatal(err)
		}

		// On a busy machine the rotation ends after fewer rounds. The kills then continue after its
		// end.
		if stable(2)(status) && kills >= most {
			break
		}

		if round > 5000 {
			t.Fatalf("no end: %+v", status)
		}
	}

	t.Logf("killed %d times", kills)
	lab.assertNothingLost()
	assertNoFailures(t, lab)
	lab.until(newSet(t, lab.client, lab.confirmations()), "what is left is swept", stable(2))
	assertOneKey(t, lab.client)
}
