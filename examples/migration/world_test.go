package migration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	prom "github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/lifecyclemanager"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/controlplane/watcher"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
	"github.com/runtime-watcher/runtime-watcher/test/lab/manifests"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

const (
	// patience is generous: the machine may be busy with other things.
	patience = 10 * time.Minute
	// The images of the agents: that of today, ours in its Deployment, and ours in our Deployment.
	todaysImage = "runtime-watcher-skr:today"
	dropinImage = "runtime-watcher-skr:dropin"
	ourImage    = "agent.example/agent:test"
	// propagation is enough for a gateway that reads its Secret every 200 ms.
	propagation = 2 * time.Second
)

// world is a control plane of today with its runtimes.
type world struct {
	t        *testing.T
	plane    *apiserver.ControlPlane
	rights   *limited // of our operator
	scheme   *runtime.Scheme
	members  []*member
	ingress  *today.Ingress
	operator *today.Operator
	shape    today.Shape
	listener *today.Listener // of the former operator
	formerAt string
	record   rig.Arrivals
	steps    *rig.Steps
	ours     *ours
	page     []section
	chapters []chapter
	section  section           // that is read
	at       int               // place in the section of the last command
	dir      string            // has log and metrics of the operator, and a kubectl that shows them
	checkout string            // of lifecycle-manager
	original map[string][]byte // the files of checkout
	config   configuration
	ran      map[string]bool // commands of the guide, after the title of their section
	last     string          // what a test that fails was waiting for
}

// member is a runtime.
type member struct {
	*apiserver.ControlPlane

	kyma, id string
	node     *node.Node
	rights   *limited // of our installer
	flow     *rig.Flow
	windows  []rig.Window // in which the agent was replaced
}

func newWorld(t *testing.T, shape today.Shape, kymas ...string) *world {
	t.Helper()
	rig.SkipShort(t)
	w := &world{
		t: t, shape: shape, scheme: runtime.NewScheme(), steps: rig.NewSteps(), dir: t.TempDir(), checkout: t.TempDir(),
		page: read(shape.Page(string(test.Read(t, guide)))), chapters: chapters(), ran: map[string]bool{},
	}
	w.original = unpack(t, w.checkout)
	w.must(errors.Join(clientgoscheme.AddToScheme(w.scheme), certv1.AddToScheme(w.scheme),
		apiextensionsv1.AddToScheme(w.scheme), watcher.AddToScheme(w.scheme)))
	gateway := rig.Address(rig.FreePort(t))
	w.startClusters(gateway, kymas)
	certmanager.StartT(t, w.plane.Kubeconfig, certmanager.Options{})
	// The log of the operator's Deployment is a file here, and so are its metrics.
	kubectl := "#!/bin/sh\n[ \"$2 $3\" = \"kcp-system logs\" ] && exec cat " + w.log() +
		"\n[ \"$1 $2\" = \"get --raw\" ] && exec cat " + filepath.Join(w.dir, "metrics") +
		"\nexec \"$ASSETS/kubectl\" \"$@\"\n"
	w.must(os.WriteFile(filepath.Join(w.dir, "kubectl"), []byte(kubectl), 0o700))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.last)
			w.steps.Log(t)
		}
	})
	w.startToday(gateway)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	rig.NoError(w.t, err)
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	rig.Eventually(w.t, patience, what, condition)
}

// startClusters starts the API servers of the control plane and of the runtimes at the same time.
func (w *world) startClusters(gateway string, kymas []string) {
	args := map[string][]string{}
	w.rights = newLimited(w.t, args, operatorUser, "deploy/migration/controlplane.yaml")
	all := []apiserver.Options{{
		Scheme: w.scheme, CRDPaths: manifests.Routes(w.t, watcher.VirtualService), APIServerArgs: args,
	}}
	agent := rig.Build(w.t, "cmd/agent")
	images := map[string]string{todaysImage: rig.Build(w.t, "test/lab/today/skrwebhook"), dropinImage: agent, ourImage: agent}
	for _, kyma := range kymas {
		m := &member{kyma: kyma, id: strings.Repeat(kyma[len(kyma)-1:], 8) + "-aaaa-bbbb-cccc-dddddddddddd"}
		m.node = node.New(w.t, node.Options{
			Images: images, ImageEnv: map[string][]string{dropinImage: today.ImageEnv(w.t)},
			Hosts: map[string]string{today.Host + ":443": gateway},
		})
		args := m.node.APIServerArgs()
		m.rights = newLimited(w.t, args, installerUser, "deploy/migration/runtime.yaml")
		all = append(all, apiserver.Options{APIServerArgs: args})
		w.members = append(w.members, m)
	}
	planes := apiserver.StartAllT(w.t, all...)
	w.plane = planes[0]
	for i, m := range w.members {
		m.ControlPlane = planes[i+1]
		w.startRuntime(m)
	}
}

func (w *world) startRuntime(m *member) {
	// It reads all the time.
	m.node.Start(&apiserver.ControlPlane{Config: m.Config, Kubeconfig: m.Kubeconfig, Client: w.cached(m.ControlPlane)})
	w.must(m.Client.Create(w.t.Context(), newNamespace(today.Namespace)))
	m.rights.addUser(m.ControlPlane)
	for _, object := range append(today.Rights(today.Namespace), today.Kymas()) {
		w.must(m.Client.Create(w.t.Context(), object))
	}
}

func (w *world) log() string { return filepath.Join(w.dir, "log") }

// cached returns a client that reads what it watches.
func (w *world) cached(plane *apiserver.ControlPlane) client.Client {
	w.t.Helper()
	c, err := cluster.New(plane.Config, func(o *cluster.Options) {
		o.Scheme = plane.Client.Scheme()
		o.Client.Cache = &client.CacheOptions{Unstructured: true}
	})
	w.must(err)
	rig.Run(w.t, "cache", c.Start)
	return c.GetClient()
}

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// startToday makes the control plane of today, with stored versions v1beta1 and v1beta2.
func (w *world) startToday(gateway string) {
	for _, name := range []string{today.PlaneNamespace, today.GatewayNamespace} {
		w.must(w.plane.Client.Create(w.t.Context(), newNamespace(name)))
	}
	w.rights.addUser(w.plane)
	w.must(w.plane.Client.Create(w.t.Context(), today.Kymas()))
	w.must(w.plane.Client.Create(w.t.Context(), today.Watchers(false)))
	w.release() // It defines the newer version.
	if w.shape == today.Next {
		w.must(w.plane.Client.Create(w.t.Context(), today.RuntimeWatchers()))
	}
	for _, object := range append(w.shape.PKI(), w.shape.Plane()...) {
		w.eventually("the API server knows "+object.GetKind(), func() bool {
			err := w.plane.Client.Create(w.t.Context(), object.DeepCopy())
			return err == nil || apierrors.IsAlreadyExists(err)
		})
	}
	w.listener = &today.Listener{Arrived: w.todays}
	w.formerAt = today.Serve(w.t, w.listener)
	w.ingress = today.NewIngress(w.cached(w.plane))
	w.ingress.Lead(today.Service, w.formerAt)
	rig.Run(w.t, "ingress", func(ctx context.Context) error { return w.ingress.Run(ctx, gateway) })
	w.operator = &today.Operator{
		Plane: w.plane.Client, Runtimes: map[string]client.Client{}, Address: today.Host + ":443", Shape: w.shape,
	}
	w.operator.Set(func(d *today.Duties) { *d = today.Duties{Gateway: true, Watchers: true, Image: todaysImage} })
	for _, m := range w.members {
		w.operator.Runtimes[m.kyma] = m.Client
		w.represent(m)
	}
	rig.Run(w.t, "operator of today", func(ctx context.Context) error {
		w.operator.Run(ctx, func(err error) { w.t.Logf("operator of today: %v", err) })
		return nil
	})
}

// configuration is what a release of lifecycle-manager applies.
type configuration struct {
	of      string // the text of its sources
	objects []*unstructured.Unstructured
}

// release applies the kustomization of the checkout, as each release of lifecycle-manager does.
func (w *world) release() {
	w.t.Helper()
	if text := w.sources(); text != w.config.of {
		w.config = configuration{of: text}
		out := rig.Kubectl(w.t, "kustomize", filepath.Join(w.checkout, "config", "control-plane"))
		for document := range strings.SplitSeq(out, "\n---\n") {
			object := &unstructured.Unstructured{}
			w.must(yaml.Unmarshal([]byte(document), &object.Object))
			w.config.objects = append(w.config.objects, object)
		}
	}
	for _, object := range w.config.objects {
		w.eventually(object.GetKind()+" "+object.GetName()+" is applied", func() bool {
			err := w.plane.Client.Apply(w.t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
				client.FieldOwner("argocd-controller"), client.ForceOwnership)
			w.last = fmt.Sprint(err)
			return err == nil
		})
	}
}

// sources are the files of the kustomization that patches change.
func (w *world) sources() string {
	return w.source("config/crd/kustomization.yaml") + w.source("config/istio/endpoints_authorization_policy.yaml")
}

func (w *world) source(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.checkout, name))
	w.must(err)
	return string(text)
}

// renameDefinition applies our definition with the kind of the next shape.
func (w *world) renameDefinition() {
	w.t.Helper()
	text, err := crd.Watchers(names.Names{Kind: w.shape.WatcherKind().Kind})
	w.must(err)
	object := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal(text, &object.Object))
	w.must(w.plane.Client.Apply(w.t.Context(), client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner("argocd-controller"), client.ForceOwnership))
}

// checkoutIsUnchanged wants the way back to take each patch back. The modules and a file that
// nothing reads stay.
func (w *world) checkoutIsUnchanged() {
	w.t.Helper()
	for name, text := range w.original {
		if got, err := os.ReadFile(filepath.Join(w.checkout, name)); err != nil || !bytes.Equal(got, text) {
			w.t.Errorf("the way back changes %s: %v\n%s", name, err, got)
		}
	}
}

// represent makes the operators know a runtime.
func (w *world) represent(m *member) {
	w.must(w.plane.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: today.PlaneNamespace, Name: "kubeconfig-" + m.kyma,
			Labels: map[string]string{today.KymaNameLabel: m.kyma},
		},
		Data: map[string][]byte{"config": m.rights.kubeconfig(w.t)},
	}))
	w.eventually("the API server knows Kyma", func() bool {
		return w.plane.Client.Create(w.t.Context(), today.RuntimeKyma(m.kyma, m.id)) == nil
	})
}

// ours are the parts of this project in the operator.
type ours struct {
	w    *world
	opts lifecyclemanager.Options
	addr string // of the listener
	// registers has the operator register the metrics of its former listener, as it does before the
	// patch of step 2.
	registers bool
	stop      func()
	// reads is the name of an object that reconciles read in the runtimes.
	reads atomic.Pointer[string]
	// spared is the number of resends that have started no reconcile.
	spared atomic.Int64
	states sync.Map
}

func newOurs(w *world) *ours {
	o := &ours{w: w, addr: rig.Address(rig.FreePort(w.t)), stop: func() {}}
	o.opts = lifecyclemanager.Options{
		Address: today.Host + ":443", Image: ourImage, WarmUp: time.Millisecond,
		WatcherKind: w.shape.WatcherKind().Kind, CA: w.shape.CA(), GatewaySecret: w.shape.GatewaySecret(),
		Source:       controllerruntime.SourceOptions{Handled: o.handled},
		Keys:         keys.FilesOptions{Poll: 200 * time.Millisecond},
		Certificates: certificates.Options{Propagation: propagation},
		Agent: installation.Options{
			// Events are counted, so nothing is sent twice, except at the end.
			Settings: map[string]string{
				"HEARTBEAT_INTERVAL": "1s", "CANARY_INTERVAL": "2s", "SETTLE": "10ms", "RESEND_AFTER": "0s", "RESEND_RESYNC": "0s",
			},
			// On a busy machine, the default would let writes go by that are counted here.
			Webhooks: admission.ConfigurationOptions{Timeout: 30 * time.Second},
		},
		Runtimes: runtimes.Options{Interval: time.Second, Retry: 300 * time.Millisecond, Report: o.note},
	}
	return o
}

// scheme is that of the former operator, which has a Go type of its own for Watchers.
func (o *ours) scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(o.w.shape.WatcherKind(), &formerWatcher{})
	o.w.must(errors.Join(clientgoscheme.AddToScheme(scheme), certv1.AddToScheme(scheme)))
	return scheme
}

// release restarts the operator, as a release of it does.
func (o *ours) release(step int) {
	w := o.w
	w.t.Helper()
	o.stop()
	w.release()
	text := w.source("internal/controller/kyma/setup.go")
	if !strings.Contains(text, fmt.Sprintf("Step:   %d,", step)) {
		w.t.Errorf("the patches make another step than %d:\n%s", step, text)
	}
	o.opts.Step = step
	watched, err := fleet.New(fleet.Options{})
	w.must(err)
	o.opts.Listener.Fleet = watched
	metrics.Registry = prom.NewRegistry() // It is another process.
	if o.registers {
		today.RegisterMetrics(metrics.Registry)
	}
	log, err := os.Create(w.log())
	w.must(err)
	mgr, err := ctrl.NewManager(w.rights.config, ctrl.Options{
		Scheme: o.scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Logger:     logr.FromSlogHandler(slog.NewJSONHandler(log, nil)),
	})
	w.must(err)
	source, err := lifecyclemanager.SetUp(mgr, o.addr, o.opts)
	w.must(err)
	w.must(ctrl.NewControllerManagedBy(mgr).Named("kyma").WatchesRawSource(source).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, o.read(ctx, r, source)
		})))
	o.stop = rig.Run(w.t, "operator", mgr.Start)
	w.eventually("our listener is ready", func() bool { return source.Ready() == nil && rig.Accepts(o.addr) })
}

// read reads an object of a runtime, if the test wants that, as step 5 of the guide does.
func (o *ours) read(ctx context.Context, r reconcile.Request, source *controllerruntime.Source[ctrl.Request]) error {
	name := o.reads.Load()
	i := slices.IndexFunc(o.w.members, func(m *member) bool { return m.kyma == r.Name })
	if name == nil || i < 0 {
		return nil
	}
	there := source.Client(r, core.RuntimeID(o.w.members[i].id), o.w.members[i].Client)
	return client.IgnoreNotFound(there.Get(ctx, types.NamespacedName{Namespace: today.Namespace, Name: *name},
		today.WatchedKyma("", "")))
}

// handled notes a delivery.
func (o *ours) handled(h hook.Handled) {
	o.w.record.Delivered(h)
	if name := o.reads.Load(); name != nil && h.Delivery.Event.Watched.Name == *name && h.Requests == 0 && h.Err == nil {
		o.spared.Add(1)
	}
}

// note keeps the last status of each runtime, for a test that fails.
func (o *ours) note(_ context.Context, object client.Object, status installation.Status) error {
	o.states.Store(object.GetName(), status)
	return nil
}

// formerWatcher is the Go type of another module for the kind Watcher, as lifecycle-manager has one.
type formerWatcher struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject implements [runtime.Object].
func (f *formerWatcher) DeepCopyObject() runtime.Object {
	return &formerWatcher{TypeMeta: f.TypeMeta, ObjectMeta: *f.DeepCopy()}
}

// todays notes what arrives at an operator of today, for which a resync is an ordinary event.
func (w *world) todays(e today.Event) {
	w.record.Note(arrival(e.Runtime, e.Watched.Name), e.Watched.Name == "resync")
}

func arrival(id, object string) rig.Arrival {
	return rig.Arrival{Runtime: core.RuntimeID(id), Manager: today.Manager, Object: object}
}

// every is the time between two writes in a runtime: three runtimes have 20 a second.
const every = 150 * time.Millisecond

func (w *world) startFlow(m *member) {
	m.flow = rig.StartFlow(w.t, &w.record, core.RuntimeID(m.id), today.Manager, every, func(ctx context.Context, name string) error {
		return m.Client.Create(ctx, today.WatchedKyma(m.kyma, name))
	})
	m.flow.ExcuseStalls(m.ControlPlane)
}

// replacing has an agent replaced. A resync may replace the event of a write only then, and while an
// agent of today serves after ours (see leaveToToday).
func (w *world) replacing(replace func()) {
	for _, m := range w.members {
		if last := len(m.windows) - 1; last >= 0 && m.windows[last].To == served {
			m.windows[last].To = m.flow.Committed()
		}
		m.windows = append(m.windows, rig.Window{From: m.flow.Committed()})
	}
	replace()
	for _, m := range w.members {
		m.windows[len(m.windows)-1].To = m.flow.Count()
	}
}

// served is the end of a window that lasts until our agents replace those of today.
const served = math.MaxInt

// leaveToToday extends the last windows until the next replacement. An agent of today has no probe,
// retries nothing and sends no resync: the guarantee is ours, and begins with our next agent.
func (w *world) leaveToToday() {
	for _, m := range w.members {
		m.windows[len(m.windows)-1].To = served
	}
}

// settle wants each write in these runtimes to have arrived, and at least that many a second to have
// been due. A machine that is too slow for them makes fewer.
func (w *world) settle(wanted float64, members ...*member) {
	all := 0.0
	allDue := 0.0
	for _, m := range members {
		m.flow.Settle(patience, m.windows...)
		written, due := m.flow.Rates()
		all, allDue = all+written, allDue+due
	}
	w.t.Logf("%.1f writes a second, of %.1f that were due", all, allDue)
	if allDue < wanted || all < wanted/10 {
		w.t.Errorf("%.1f writes a second, of %.1f that were due, want %.1f due and a tenth written", all, allDue, wanted)
	}
}
