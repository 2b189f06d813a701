package certificates_test

import (
	"bytes"
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
)

// followed is an operator with intervals that are longer than the test. One API server is the
// control plane and the runtime.
type followed struct {
	*apiserver.ControlPlane

	t          *testing.T
	set        *certificates.Certificates
	kubeconfig []byte
	gets       atomic.Int32 // of the certificates, and of their Secrets

	mu       sync.Mutex
	state    installation.Status
	reported int
}

func startFollowed(t *testing.T) *followed {
	t.Helper()
	known := known(t)
	f := &followed{t: t, ControlPlane: apiserver.StartT(t, apiserver.Options{
		Scheme: known, CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})}
	f.operate(known)
	// The CRDs of cert-manager come after the start of the operator.
	certmanager.StartT(t, f.Kubeconfig, certmanager.Options{})
	return f
}

func (f *followed) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *followed) operate(known *runtime.Scheme) {
	f.t.Helper()
	var err error
	f.kubeconfig, err = os.ReadFile(f.Kubeconfig)
	f.must(err)
	mgr := rig.NewManager(f.t, f.Config, known)
	direct, err := client.NewWithWatch(f.Config, client.Options{Scheme: known})
	f.must(err)
	f.set = newSet(f.t, interceptor.NewClient(direct, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption,
		) error {
			f.gets.Add(1)
			return c.Get(ctx, key, o, opts...)
		},
	}), everybodyConfirms)
	installer, err := installation.New("image", "listener.example:443", installation.Options{})
	f.must(err)
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		if object.GetName() != "runtime-a" {
			return runtimes.Identity{}, nil
		}
		return runtimes.Identity{ID: "runtime-a", Domain: domainOf("runtime-a")}, nil
	}
	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", secretOf, runtimes.KubeconfigOptions{})
	f.must(runtimes.SetUp(mgr, &corev1.ConfigMap{}, identify, kubeconfigs, f.set, installer, runtimes.Options{
		Interval: time.Hour, Report: f.report,
		Kubeconfigs: runtimes.KubeconfigSecrets{Namespace: namespace, Label: "runtime"},
	}))
	rig.Run(f.t, "operator", mgr.Start)
}

func secretOf(object client.Object) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: "kubeconfig-" + object.GetName()}
}

func (f *followed) report(_ context.Context, object client.Object, status installation.Status) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if object.GetName() == "runtime-a" {
		f.state = status
		f.reported++
	}
	return nil
}

func (f *followed) last() (status installation.Status, reported int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.reported
}

func (f *followed) waitFor(state installation.State, reason string) {
	f.t.Helper()
	defer func() {
		if last, _ := f.last(); f.t.Failed() {
			f.t.Logf("last status: %+v", last)
		}
	}()
	rig.Eventually(f.t, patience, string(state)+" "+reason, func() bool {
		f.answer()
		last, _ := f.last()
		return last.State == state && (reason == "" || last.Reason == reason)
	})
}

// answer plays the controllers of the runtime.
func (f *followed) answer() {
	var deployment appsv1.Deployment
	name := client.ObjectKey{Namespace: installation.Name, Name: installation.Name}
	if f.Client.Get(f.t.Context(), name, &deployment) != nil ||
		deployment.Status.ObservedGeneration == deployment.Generation {
		return
	}
	wanted := *deployment.Spec.Replicas
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: wanted, UpdatedReplicas: wanted,
		ReadyReplicas: wanted, AvailableReplicas: wanted,
	}
	_ = f.Client.Status().Update(f.t.Context(), &deployment) // Tried again.
	_ = f.Client.Create(f.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: "agent", Labels: map[string]string{discoveryv1.LabelServiceName: name.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		}},
	})
}

// setKubeconfig writes the Secret of the runtime.
func (f *followed) setKubeconfig(content []byte) {
	f.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "kubeconfig-runtime-a",
		Labels: map[string]string{"runtime": "runtime-a"},
	}, Data: map[string][]byte{"config": content}}
	if err := f.Client.Create(f.t.Context(), secret); err != nil {
		f.must(f.Client.Update(f.t.Context(), secret))
	}
}

// TestChangesActAtOnce: each change acts at once, although nothing is due within an hour, and a reconcile without a change
// reads no certificate.
func TestChangesActAtOnce(t *testing.T) {
	rig.SkipShort(t)
	f := startFollowed(t)
	f.setKubeconfig(f.kubeconfig)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "runtime-a"}}
	f.must(f.Client.Create(t.Context(), object))
	f.waitFor(installation.Ready, "")
	f.readsNoCertificate(object)
	f.setKubeconfig([]byte("none"))
	f.waitFor(installation.Failed, "InvalidKubeconfig")
	f.setKubeconfig(f.kubeconfig)
	f.waitFor(installation.Ready, "")
	f.certificateIsDeliveredAtOnce()
	annotate(t, f.Client, rotateCA, "now")
	rig.Eventually(t, patience, "the rotation begins", func() bool {
		second := client.ObjectKey{Namespace: namespace, Name: setName + "-ca-2"}
		return f.Client.Get(t.Context(), second, &certv1.Certificate{}) == nil
	})
}

// readsNoCertificate changes the object until a reconcile of it reads no certificate.
func (f *followed) readsNoCertificate(object client.Object) {
	f.t.Helper()
	rig.Eventually(f.t, patience, "a reconcile reads no certificate", func() bool {
		gets := f.gets.Load()
		_, before := f.last()
		object.SetAnnotations(map[string]string{"at": time.Now().String()})
		patch := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: object.GetName()}}
		patch.Annotations = object.GetAnnotations()
		f.must(f.Client.Patch(f.t.Context(), patch, client.Merge))
		rig.Eventually(f.t, patience, "the object is reconciled", func() bool {
			_, after := f.last()
			return after > before
		})
		return f.gets.Load() == gets
	})
}

// certificateIsDeliveredAtOnce deletes the Secret of the client certificate, which cert-manager
// issues anew.
func (f *followed) certificateIsDeliveredAtOnce() {
	f.t.Helper()
	key := client.ObjectKey{Namespace: namespace, Name: "runtime-a-watcher-tls"}
	var issued, installed corev1.Secret
	f.must(f.Client.Get(f.t.Context(), key, &issued))
	f.must(f.Client.Delete(f.t.Context(), &issued))
	rig.Eventually(f.t, patience, "a new certificate is in the runtime", func() bool {
		there := client.ObjectKey{Namespace: installation.Name, Name: "runtime-watcher-tls"}
		if f.Client.Get(f.t.Context(), key, &issued) != nil || f.Client.Get(f.t.Context(), there, &installed) != nil {
			return false
		}
		now, is := issued.Data[corev1.TLSCertKey], installed.Data[corev1.TLSCertKey]
		return len(now) > 0 && bytes.Equal(now, is)
	})
}
