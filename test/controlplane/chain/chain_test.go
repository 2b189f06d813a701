// Package chain tests the control-plane side as a whole: real API servers, cert-manager's
// controllers, and the agent as a process with the environment and the files of its Deployment.
package chain

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
)

const (
	image = "agent.example/agent:test"
	host  = "listener.example"
	// propagation is enough for a volume that is updated every 100 ms and for watched files, also
	// on a slow machine.
	propagation = 4 * time.Second
)

// world is a control plane with an operator and one runtime.
type world struct {
	t        *testing.T
	settings map[string]string // of the agent
	scheme   *runtime.Scheme
	plane    *apiserver.ControlPlane
	broker   *rig.BrokerNode
	fleet    *fleet.Fleet
	set      *certificates.Certificates
	record   rig.Arrivals
	gets     atomic.Int32 // of the certificates, and of their Secrets

	runtime *apiserver.ControlPlane
	node    *node.Node

	mu    sync.Mutex                          // of the files of the NATS server
	state atomic.Pointer[installation.Status] // the last one that was reported
}

func deployment() types.NamespacedName {
	return types.NamespacedName{Namespace: installation.Name, Name: installation.Name}
}

// newWorld installs the agent into a namespace of its own, and watches objects in the namespace
// default.
func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	rig.SkipShort(t)
	w := &world{t: t, settings: settings, scheme: runtime.NewScheme()}
	w.must(errors.Join(clientgoscheme.AddToScheme(w.scheme), certv1.AddToScheme(w.scheme), watcher.AddToScheme(w.scheme)))
	w.broker = rig.NewBrokerNode(t, "broker", "")
	// First of all, as it may skip the test.
	w.node = node.New(t, node.Options{
		Objects: true, // The proxy of the API server finds the pods in them.
		Images:  map[string]string{image: rig.Build(t, "cmd/agent")}, Hosts: map[string]string{host + ":443": w.broker.Addr},
	})
	w.plane = apiserver.StartT(t, apiserver.Options{
		Scheme: w.scheme, CRDs: []*apiextensionsv1.CustomResourceDefinition{manifests.Watchers(t)},
	})
	w.runtime = apiserver.StartT(t, apiserver.Options{APIServerArgs: w.node.APIServerArgs()})
	w.node.Start(w.runtime)
	pinning, source := w.operate()
	// The definitions of cert-manager come after the start of the operator.
	certmanager.StartT(t, w.plane.Kubeconfig, certmanager.Options{})
	w.consume(pinning, map[core.Manager]core.Handler{steady: source})
	w.must(w.plane.Client.Create(t.Context(), newWatcher()))
	w.setKubeconfig(rig.Must(os.ReadFile(w.runtime.Kubeconfig)))
	rig.AddRuntime(t, w.plane, string(stays), rig.RuntimeDomain(stays))
	w.waitFor(installation.Ready, "")
	w.settled()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	rig.NoError(w.t, err)
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	rig.Eventually(w.t, rig.Patience, what, condition)
}

// operate runs the parts of an operator: the Watcher controller, the reconciler of runtimes, and a
// controller with the source of its events. ConfigMaps with the annotation skr-domain represent
// runtimes.
func (w *world) operate() (pinning core.Verifier, source core.Handler) {
	w.t.Helper()
	mgr := rig.NewManager(w.t, w.plane.Config, w.scheme)
	w.must(watcher.SetUp(mgr, watcher.Options{Routing: watcher.NoRouting}))
	w.fleet = rig.Must(fleet.New(fleet.Options{}))
	w.set = rig.Must(certificates.New(w.counting(), certificates.Parts{
		Name:        types.NamespacedName{Namespace: rig.Namespace, Name: "watcher"},
		DNSNames:    []string{host, operatorDomain},
		Unconfirmed: certificates.FromFleet(w.fleet, time.Millisecond),
	}, certificates.Options{Propagation: propagation}))
	w.must(w.addRuntimes(mgr))
	known := rig.Must(controllerruntime.NewRuntimes(mgr.GetCache(), rig.MetadataOf(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		controllerruntime.ByName, controllerruntime.RuntimesOptions{}))
	events := controllerruntime.NewSource(controllerruntime.EnqueueByRuntime(known), controllerruntime.SourceOptions{
		Elected: mgr.Elected(), Handled: w.record.Delivered,
	})
	w.must(ctrl.NewControllerManagedBy(mgr).Named(string(steady)).WatchesRawSource(events).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})))
	rig.Run(w.t, "operator", mgr.Start)
	return listener.SANPinning(known), events
}

// counting returns a client for the certificates, which counts what they read.
func (w *world) counting() client.Client {
	w.t.Helper()
	direct := rig.Must(client.NewWithWatch(w.plane.Config, client.Options{Scheme: w.scheme}))
	return interceptor.NewClient(direct, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			w.gets.Add(1)
			return c.Get(ctx, key, o, opts...)
		},
	})
}

// addRuntimes keeps the agents. Nothing is due by time within an hour.
func (w *world) addRuntimes(mgr ctrl.Manager) error {
	installer, err := installation.New(installation.Parts{Image: image, ControlPlane: host + ":443"}, installation.Options{
		Settings: w.settings,
		// With the default, writes could pass unreviewed on a busy machine. This test counts each
		// write.
		Webhooks: admission.ConfigurationOptions{Timeout: 30 * time.Second},
	})
	if err != nil {
		return err
	}
	identify := func(_ context.Context, object client.Object) (runtimes.Identity, error) {
		domain, ok := object.GetAnnotations()[controllerruntime.DomainAnnotation]
		if !ok {
			return runtimes.Identity{}, nil
		}
		return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
	}
	connect := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", func(object client.Object) client.ObjectKey {
		return client.ObjectKey{Namespace: object.GetNamespace(), Name: "kubeconfig-" + object.GetName()}
	}, runtimes.KubeconfigOptions{})
	parts := runtimes.Parts{
		Object: &corev1.ConfigMap{}, Identify: identify, Connect: connect, Certificates: w.set, Installer: installer,
	}
	return runtimes.SetUp(mgr, parts, runtimes.Options{
		Interval: time.Hour, Retry: 300 * time.Millisecond, Fleet: w.fleet,
		Kubeconfigs: runtimes.KubeconfigSecrets{Namespace: rig.Namespace, Label: "runtime"},
		Report: func(_ context.Context, object client.Object, status installation.Status) error {
			if object.GetName() == string(stays) {
				w.state.Store(&status)
			}
			return nil
		},
	})
}

// setKubeconfig writes the Secret with the kubeconfig of the runtime.
func (w *world) setKubeconfig(content []byte) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: rig.Namespace, Name: "kubeconfig-" + string(stays), Labels: map[string]string{"runtime": string(stays)},
	}, Data: map[string][]byte{"config": content}}
	if err := w.plane.Client.Create(w.t.Context(), secret); err != nil {
		w.must(w.plane.Client.Update(w.t.Context(), secret))
	}
}

// waitFor waits for the state of the installation, and for its reason, if there is one.
func (w *world) waitFor(state installation.State, reason string) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			w.t.Logf("last status: %+v", w.state.Load())
		}
	}()
	w.eventually("the installation is "+string(state)+" "+reason, func() bool {
		last := w.state.Load()
		return last != nil && last.State == state && (reason == "" || string(last.Reason) == reason)
	})
}

// settled returns when all replicas are of the newest Deployment, and the old ones gone.
func (w *world) settled() (pods []node.Pod) {
	w.t.Helper()
	w.eventually("both replicas are ready", func() bool {
		pods = w.node.Pods(deployment())
		return len(pods) == 2 && pods[0].Ready && pods[1].Ready && !pods[0].Ending && !pods[1].Ending
	})
	return pods
}

const (
	steady = core.Manager("my-operator")
	stays  = core.RuntimeID("runtime-1")
)

func newWatcher() *v1beta2.Watcher {
	return &v1beta2.Watcher{
		ObjectMeta: metav1.ObjectMeta{
			Name: string(steady), Namespace: rig.Namespace,
			Labels: map[string]string{names.Names{}.ManagedBy(): string(steady)},
		},
		Spec: v1beta2.WatcherSpec{
			ServiceInfo:     v1beta2.Service{Name: "events", Namespace: "kcp-system", Port: 8082},
			ResourceToWatch: v1beta2.WatchableGVR{Version: "*", Resource: "configmaps"},
			LabelsToWatch:   map[string]v1beta2.LabelValue{"watched-by": "first"},
			Gateway: v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{
				MatchLabels: map[string]v1beta2.LabelValue{"for": "watchers"},
			}},
		},
	}
}

// TestChainOverNATS installs agents that send through a NATS server. Nothing is due by time within an
// hour, so that each change acts by itself. The server has the certificate of a listener, and reloads
// it as the runbook says. After the rotation it is killed, so that each connection is made with the
// new certificates. TestStory of examples/lifecyclemanager and TestMigration of examples/migration do so
// over HTTP.
func TestChainOverNATS(t *testing.T) {
	w := newWorld(t, map[string]string{"TRANSPORT": "nats", "HEARTBEAT_INTERVAL": "1s", "SETTLE": "10ms", "CANARY_INTERVAL": "1s"})
	confined(t, w.settled()[0])
	w.reaches("first")
	w.readsNoCertificate()
	w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
	}, rig.Patience)
	w.repaired(&appsv1.Deployment{ObjectMeta: meta("")}, rig.Patience)
	// A reconcile that reads three objects finds nothing.
	w.repaired(&rbacv1.Role{ObjectMeta: meta("-canary")}, rig.Patience)
	w.switchesOffAndOn()
	w.setKubeconfig([]byte("none"))
	w.waitFor(installation.Failed, "InvalidKubeconfig")
	w.setKubeconfig(rig.Must(os.ReadFile(w.runtime.Kubeconfig)))
	w.waitFor(installation.Ready, "")
	w.certificateIsDelivered()
	w.watcherChanges("second")
	w.settled()
	flow := rig.StartFlow(t, &w.record, stays, steady, 100*time.Millisecond,
		func(ctx context.Context, name string) error { return w.create(ctx, name, "second") })
	flow.ExcuseStalls(w.runtime)
	w.rotation()
	w.stepsWithNATS()
	before := flow.Count()
	w.restart()
	w.reaches("second")
	flow.Settle(rig.Patience, rig.Window{To: before})
	w.installChart()
	w.reaches("by-chart")
	_, err := w.set.EnsureRuntime(t.Context(), certificates.Runtime{ID: "runtime-2", Domain: operatorDomain})
	rig.Fails(t, "a certificate of a runtime with the name of the operator", err)
}

// TestRepairTime measures the time from the removal of a webhook configuration to the new one, with
// the default settings.
func TestRepairTime(t *testing.T) {
	if *repairs == 0 {
		t.Skip("measures for minutes: -repairs 10")
	}
	w := newWorld(t, map[string]string{"TRANSPORT": "nats"})
	for n := range *repairs {
		<-time.After(rand.N(30 * time.Second)) // The canary writes and heartbeats come every 30 s.
		took := w.repaired(&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: installation.Name},
		}, 3*time.Minute)
		t.Logf("repair %d: %.1f s", n+1, took.Seconds())
	}
}

var repairs = flag.Int("repairs", 0, "measure that many repairs with the default intervals of the agent")

// meta names an object of the agent by its suffix.
func meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: installation.Name, Name: installation.Name + suffix}
}

// create makes an object in the runtime.
func (w *world) create(ctx context.Context, name, watchedBy string) error {
	return w.runtime.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{"watched-by": watchedBy},
	}})
}

// reaches writes objects until the event of one arrives, because a changed configuration takes
// effect after a moment.
func (w *world) reaches(watchedBy string) {
	w.t.Helper()
	var written []rig.Arrival
	w.eventually(fmt.Sprintf("an object for %s reaches the operator", watchedBy), func() bool {
		name := fmt.Sprintf("%s-%d", watchedBy, time.Now().UnixNano())
		w.must(w.create(w.t.Context(), name, watchedBy))
		written = append(written, rig.Arrival{Runtime: stays, Manager: steady, Object: name})
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
			if slices.ContainsFunc(written, func(a rig.Arrival) bool { return w.record.Count(a) > 0 }) {
				return true
			}
		}
		return false
	})
}

// repaired removes an object from the runtime, and returns the time until another one is there. The
// fleet asks for that. The runtime is fresh before and after that.
func (w *world) repaired(object client.Object, within time.Duration) time.Duration {
	w.t.Helper()
	fresh := func() bool { return w.fleet.Get(stays, steady).State == fleet.Fresh }
	w.eventually("the runtime is fresh", fresh)
	in := w.runtime.Client
	key := client.ObjectKeyFromObject(object)
	rig.Stored(w.t, in, key, object)
	former := object.GetUID()
	begun := time.Now()
	w.must(in.Delete(w.t.Context(), object))
	rig.Eventually(w.t, within, "there is another "+key.Name, func() bool {
		return in.Get(w.t.Context(), key, object) == nil && object.GetUID() != former
	})
	took := time.Since(begun)
	w.eventually("the runtime is fresh again", fresh)
	return took
}

// readsNoCertificate changes the object of the runtime until a reconcile of it reads no certificate.
func (w *world) readsNoCertificate() {
	w.t.Helper()
	w.eventually("a reconcile reads no certificate", func() bool {
		gets := w.gets.Load()
		before := w.state.Load()
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Namespace, Name: string(stays)}}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"at":%q}}}`, time.Now())
		w.must(w.plane.Client.Patch(w.t.Context(), object, client.RawPatch(types.MergePatchType, patch)))
		w.eventually("the object is reconciled", func() bool { return w.state.Load() != before })
		return w.gets.Load() == gets
	})
}

// certificateIsDelivered deletes the Secret of the client certificate, which cert-manager issues anew.
func (w *world) certificateIsDelivered() {
	w.t.Helper()
	key := client.ObjectKey{Namespace: rig.Namespace, Name: string(stays) + "-watcher-tls"}
	there := client.ObjectKey{Namespace: installation.Name, Name: "runtime-watcher-tls"}
	var issued, installed corev1.Secret
	former := rig.Stored(w.t, w.plane.Client, key, &corev1.Secret{})
	w.must(w.plane.Client.Delete(w.t.Context(), former.DeepCopy()))
	w.eventually("a new certificate is in the runtime", func() bool {
		if w.plane.Client.Get(w.t.Context(), key, &issued) != nil || w.runtime.Client.Get(w.t.Context(), there, &installed) != nil {
			return false
		}
		now := installed.Data[corev1.TLSCertKey]
		return bytes.Equal(now, issued.Data[corev1.TLSCertKey]) && !bytes.Equal(now, former.Data[corev1.TLSCertKey])
	})
}

// watcherChanges gives the Watcher another label to watch.
func (w *world) watcherChanges(watchedBy v1beta2.LabelValue) {
	w.t.Helper()
	rig.Change(w.t, w.plane.Client, newWatcher(), func(stored *v1beta2.Watcher) error {
		stored.Spec.LabelsToWatch = map[string]v1beta2.LabelValue{"watched-by": watchedBy}
		return w.plane.Client.Update(w.t.Context(), stored)
	})
	w.reaches(string(watchedBy))
}

// rotation replaces the CA while changes flow, without a restart of an agent.
func (w *world) rotation() {
	w.t.Helper()
	before := w.node.Pods(deployment())
	issuer := &certv1.Issuer{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Namespace, Name: "watcher-clients"}}
	patch := []byte(`{"metadata":{"annotations":{"operator.kyma-project.io/rotate-ca":"now"}}}`)
	w.must(w.plane.Client.Patch(w.t.Context(), issuer, client.RawPatch(types.MergePatchType, patch)))
	const done = "CA 2 signs everything"
	w.eventually("the Issuer says: "+done, func() bool {
		rig.Stored(w.t, w.plane.Client, client.ObjectKeyFromObject(issuer), issuer)
		return issuer.Annotations["operator.kyma-project.io/rotation"] == done
	})
	w.reaches("second")
	if after := w.node.Pods(deployment()); !slices.EqualFunc(before, after, sameProcess) {
		w.t.Errorf("the rotation made of the agents %+v: %+v", before, after)
	}
}

// sameProcess ignores readiness, because a probe may be late on a busy machine.
func sameProcess(a, b node.Pod) bool {
	return a.Name == b.Name && a.Pid == b.Pid && a.Restarts == b.Restarts
}

// confined checks the user, the capabilities and the network of a process.
func confined(t *testing.T, pod node.Pod) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pod.Pid)
	status, err := os.ReadFile(proc + "status")
	for _, want := range []string{
		"\nUid:\t65532\t65532", "\nGid:\t65532\t65532",
		"\nCapEff:\t0000000000000000",
	} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the process has not%s: %v\n%s", want, err, status)
		}
	}
	// The user of the pod reads it. Another one needs CAP_SYS_PTRACE, which containers have not.
	cmd := exec.CommandContext(t.Context(), "readlink", "-n", proc+"ns/net")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	own, _ := os.Readlink("/proc/thread-self/ns/net")
	if theirs, err := cmd.Output(); err != nil || string(theirs) == own {
		t.Errorf("the process is in the network %s, as this one: %v", theirs, err)
	}
}
