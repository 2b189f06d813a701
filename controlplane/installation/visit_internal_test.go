package installation

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// A seed that fails must fail each time. Without one, package rapid draws another one for each run.
func TestMain(m *testing.M) {
	if os.Getenv("RAPID_SEED") == "" {
		_ = flag.Set("rapid.seed", "1") // The flag is there.
	}
	os.Exit(m.Run())
}

// place is a runtime without a real API server, with an installer and a clock of its own.
type place struct {
	t         *testing.T
	opts      Options
	installer *Installer
	runtime   Runtime
	client    client.WithWatch // without the hooks
	now       time.Time
	// meanwhile is called before each write, with its verb and kind.
	meanwhile func(verb, kind string)
	writes    []string
	deleted   map[string]metav1.Preconditions // of each deletion, by kind
}

func newPlace(t *testing.T, opts Options) *place {
	t.Helper()

	p := &place{
		t: t, opts: opts, now: time.Unix(1e9, 0), meanwhile: func(string, string) {},
		deleted: make(map[string]metav1.Preconditions),
	}

	p.opts.NoCanary = true
	p.opts.Now = func() time.Time { return p.now }
	p.opts.Logger = slog.New(slog.DiscardHandler)
	p.installer = must(New(Parts{Image: "agent.example.com/agent:v1", ControlPlane: "kcp.example.com:443"}, p.opts))

	p.client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithReturnManagedFields().
		WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithStatusSubresource(&appsv1.Deployment{}).Build()
	ready := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.installer.opts.Namespace, Name: "agent", Labels: map[string]string{
			discoveryv1.LabelServiceName: p.installer.opts.Name,
		}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}

	p.create(ready)

	ca := must(testpki.NewCA("ca", testpki.Options{}))
	host := p.installer.opts.Name + "." + p.installer.opts.Namespace + ".svc"
	leaf := must(ca.Server("prod", testpki.Options{DNSNames: []string{host}}))
	p.runtime = Runtime{
		ID: "prod", Client: p.hooked(), Secret: testpki.Files(leaf, ca), Watches: []watch.Watch{watchOf("first"), watchOf("second")},
	}

	return p
}

func watchOf(manager core.Manager) watch.Watch {
	w := watch.Watch{Manager: manager, Name: client.ObjectKey{Namespace: "kcp", Name: string(manager)}}
	w.Resource.Version = "v1"
	w.Resource.Resource = "configmaps"

	return w
}

// hooked notes each write. The clients of controller-runtime give no type to unstructured objects.
func (p *place) hooked() client.Client {
	note := func(verb, kind string) {
		p.meanwhile(verb, kind)
		p.writes = append(p.writes, verb+" "+kind)
	}

	kindOf := func(object runtime.Object) string { return object.GetObjectKind().GroupVersionKind().Kind }
	return &serial{Client: interceptor.NewClient(p.client, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			kind := object.(interface{ GetKind() string }).GetKind()
			note("apply", kind)
			return c.Apply(ctx, object, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			note("create", kindOf(object))
			return c.Create(ctx, object, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			verb := "patch"
			if len((&client.PatchOptions{}).ApplyOptions(opts).DryRun) > 0 {
				verb = "try"
			}

			note(verb, kindOf(object))
			return c.Patch(ctx, object, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			note("delete", kindOf(object))
			if given := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions; given != nil {
				p.deleted[kindOf(object)] = *given
			}

			return c.Delete(ctx, object, opts...)
		},
	}), turn: make(chan struct{}, 1)}
}

// serial lets one write at a time pass, as hooks share what they note.
type serial struct {
	client.Client

	turn chan struct{}
}

func (s *serial) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.Client.Apply(ctx, object, opts...)
}

func (s *serial) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.Client.Delete(ctx, object, opts...)
}

func (p *place) create(object client.Object) {
	p.t.Helper()
	if err := p.client.Create(p.t.Context(), object); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) install() (Status, error) {
	p.t.Helper()

	p.writes = nil
	return p.installer.Install(p.t.Context(), p.runtime)
}

// settle installs until the agents answer.
func (p *place) settle() Status {
	p.t.Helper()

	var status Status
	for n := range 3 {
		if n > 0 {
			p.roll()
		}

		var err error
		if status, err = p.install(); err != nil {
			p.t.Fatal(err)
		}
	}

	return status
}

// roll reports all replicas of the newest Deployment as available.
func (p *place) roll() {
	p.t.Helper()

	d := p.deployment()
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, ReadyReplicas: 2,
	}
	if err := p.client.Status().Update(p.t.Context(), d); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) deployment() *appsv1.Deployment {
	p.t.Helper()
	return get(p, p.installer.opts.Name, &appsv1.Deployment{})
}

func (p *place) configMap() *corev1.ConfigMap {
	p.t.Helper()
	return get(p, p.installer.opts.managersName(), &corev1.ConfigMap{})
}

func get[O client.Object](p *place, name string, object O) O {
	p.t.Helper()

	key := client.ObjectKey{Namespace: p.installer.opts.Namespace, Name: name}
	if err := p.client.Get(p.t.Context(), key, object); err != nil {
		p.t.Fatal(err)
	}

	return object
}

func (p *place) configuration() *unstructured.Unstructured {
	p.t.Helper()

	live := p.installer.opts.bareConfiguration()
	if err := p.client.Get(p.t.Context(), client.ObjectKeyFromObject(live), live); err != nil {
		p.t.Fatal(err)
	}

	return live
}

// spoil removes a webhook, so that the API server has missed calls.
func (p *place) spoil() {
	p.t.Helper()

	live := p.configuration()
	live.Object["webhooks"] = webhooksOf(live)[1:]
	if err := p.client.Update(p.t.Context(), live); err != nil {
		p.t.Fatal(err)
	}
}

// The control of all tests here: the fake runtime gets an agent, and loses it.
func TestAPlaceGetsAnAgent(t *testing.T) {
	p := newPlace(t, Options{})
	if status := p.settle(); status.State != Ready || len(webhooksOf(p.configuration())) != 2 {
		t.Errorf("got %+v with webhooks %v", status, webhooksOf(p.configuration()))
	}
	if status, err := p.install(); err != nil || status.State != Ready || len(p.writes) > 0 {
		t.Errorf("got %+v, %v and the writes %v without a change", status, err, p.writes)
	}
}

// Two installers with the right to take a runtime over read the same ConfigMap. The one that comes
// later must not write anything.
func TestAClaimNeedsTheVersionThatWasRead(t *testing.T) {
	for name, rival := range map[string]func(p *place){
		"the rival takes over": func(p *place) {
			live := p.configMap()
			live.Annotations[p.installer.opts.Names.InstalledBy()] = "rival"
			if err := p.client.Update(t.Context(), live); err != nil {
				t.Fatal(err)
			}
		},
		"the rival creates": func(p *place) {
			p.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: p.installer.opts.Namespace, Name: p.installer.opts.managersName(),
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, Options{Owner: "first"})
			verb := "create"
			if strings.Contains(name, "over") {
				p.settle()
				p.opts.Owner = "second"
				p.opts.FormerOwners = []string{"first"}
				p.installer = must(New(Parts{Image: "agent.example.com/agent:v1", ControlPlane: "kcp.example.com:443"}, p.opts))
				verb = "patch"
			}

			p.meanwhile = func(v, kind string) {
				if v == verb && kind == "ConfigMap" {
					rival(p)
				}
			}

			_, err := p.install()
			if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				t.Errorf("error %v, want a conflict", err)
			}

			for _, write := range p.writes {
				if strings.HasPrefix(write, "apply") || strings.HasPrefix(write, "patch Validating") {
					t.Errorf("write after a claim that failed: %s", write)
				}
			}
		})
	}
}

// A namespace of others may have any labels. One that appears between the read and the creation is
// of others, too.
func TestANamespaceOfOthersIsNotApplied(t *testing.T) {
	foreign := func() *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "runtime-watcher", Labels: map[string]string{"of": "others"}}}
	}
	for name, row := range map[string]struct {
		begin func(p *place)
		ours  bool
	}{
		"control": {func(*place) {}, true},
		"exists":  {func(p *place) { p.create(foreign()) }, false},
		"appears": {func(p *place) {
			p.meanwhile = func(verb, kind string) {
				if verb == "create" && kind == "Namespace" {
					p.create(foreign())
				}
			}
		}, false},
		"of another installer": {func(p *place) {
			namespace := foreign()
			namespace.Annotations = map[string]string{
				p.installer.opts.key(annotationCreatedBy): createdBy, p.installer.opts.Names.InstalledBy(): "another",
			}

			p.create(namespace)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, Options{})
			row.begin(p)
			p.settle()
			p.runtime.Verify = true

			if _, err := p.install(); err != nil {
				t.Fatal(err)
			}
			if applied := slices.Contains(p.writes, "apply Namespace"); applied != row.ours {
				t.Errorf("the namespace is applied: %t, want %t", applied, row.ours)
			}

			live := &corev1.Namespace{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Name: "runtime-watcher"}, live); err != nil {
				t.Fatal(err)
			}
			if (live.Labels["of"] == "others") == row.ours || !row.ours && len(live.Labels) != 1 {
				t.Errorf("the namespace has the labels %v", live.Labels)
			}
		})
	}
}

// Others undo each correction. The pauses between restarts are 1, 3, 7, 15, 31 and 60 minutes, and
// begin anew after an hour of peace.
func TestPausesBetweenRestartsGrow(t *testing.T) {
	p := newPlace(t, Options{})
	schedule := func(id core.RuntimeID, due string, why cause) string {
		return p.installer.memory.restarts.scheduleRestart(id, due, why, p.now)
	}

	var restarts []time.Duration
	begun := p.now
	last := ""

	for n := range 200 {
		due := strings.Repeat("x", n%9+1)
		if have := schedule("prod", due, cause{missed: true}); have == due && have != last {
			restarts = append(restarts, p.now.Sub(begun))
			last = have
		}

		schedule("other", "always", cause{missed: true}) // Another runtime has separate pauses.
		p.now = p.now.Add(time.Minute)
	}

	var pauses []time.Duration
	for n := range restarts[1:] {
		pauses = append(pauses, restarts[n+1]-restarts[n])
	}

	for n, least := range []time.Duration{time.Minute, 3 * time.Minute, 7 * time.Minute, 15 * time.Minute, 31 * time.Minute, time.Hour} {
		if n >= len(pauses) || pauses[n] < least || pauses[n] > least+2*time.Minute {
			t.Fatalf("pauses %v, want about 1, 3, 7, 15, 31 and 60 minutes", pauses)
		}
	}

	p.now = p.now.Add(3 * time.Hour)
	first := schedule("prod", "after", cause{missed: true})
	p.now = p.now.Add(time.Minute)
	if second := schedule("prod", "peace", cause{missed: true}); first != "after" || second != "peace" {
		t.Errorf("after hours of peace: %q and %q, want short pauses again", first, second)
	}

	if have := schedule("prod", "manager", cause{former: true}); have != "manager" {
		t.Errorf("a manager that is gone waits: %q", have)
	}
}

// After the correction of the webhooks nothing else shows that a restart is due. It must be recorded
// before the correction, because the process may end at any time.
func TestADueRestartIsRecordedBeforeTheCorrection(t *testing.T) {
	p := newPlace(t, Options{})
	p.settle()
	before := p.configMap().Annotations[p.installer.opts.key(annotationRestart)]
	p.spoil()

	if _, err := p.install(); err != nil {
		t.Fatal(err)
	}

	recorded := slices.Index(p.writes, "apply ConfigMap")
	corrected := slices.Index(p.writes, "patch ValidatingWebhookConfiguration")
	if recorded < 0 || corrected < recorded {
		t.Errorf("writes %v, want the ConfigMap before the webhooks", p.writes)
	}

	due := p.configMap().Annotations[p.installer.opts.key(annotationRestart)]
	pods := p.deployment().Spec.Template.Annotations[p.installer.opts.key(annotationRestart)]
	if due == before || pods != due {
		t.Errorf("due %q after %q, and pods have %q", due, before, pods)
	}

	// Within the pause, a second restart is recorded and waits.
	p.roll()
	p.spoil()
	status := p.settle()
	second := p.configMap().Annotations[p.installer.opts.key(annotationRestart)]
	if pods = p.deployment().Spec.Template.Annotations[p.installer.opts.key(annotationRestart)]; second == due || pods != due {
		t.Errorf("due %q after %q, and pods have %q", second, due, pods)
	}

	if status.State != Failed || status.Reason != ReasonWebhooksContested {
		t.Errorf("got %+v, want it contested", status)
	}

	p.now = p.now.Add(time.Hour)
	if status = p.settle(); status.State != Ready {
		t.Errorf("got %+v after the pause", status)
	}
	if pods = p.deployment().Spec.Template.Annotations[p.installer.opts.key(annotationRestart)]; pods != second {
		t.Errorf("pods have %q after the pause, want the recorded %q", pods, second)
	}
}

// Each deletion has the UID that was read. A namespace must not have changed since, as its mark
// decides.
func TestDeletionsHavePreconditions(t *testing.T) {
	p := newPlace(t, Options{})
	p.settle()
	p.runtime.Client = documents{Client: p.runtime.Client, texts: map[string]string{
		"/apis": `{"kind": "APIGroupList"}`, "/api/v1": `{"kind": "APIResourceList"}`,
	}}

	// Objects of a fake client have no UID of their own.
	for n, object := range []client.Object{p.deployment(), p.configMap(), get(p, "runtime-watcher", &corev1.Service{})} {
		object.SetUID([]metav1.ObjectMeta{{UID: "one"}, {UID: "two"}, {UID: "three"}}[n].UID)
		if err := p.client.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}

	for range 3 {
		if _, err := p.installer.Uninstall(t.Context(), p.runtime); err != nil {
			t.Fatal(err)
		}
	}

	for kind, want := range map[string]string{"Deployment": "one", "ConfigMap": "two", "Service": "three"} {
		if have := p.deleted[kind].UID; have == nil || string(*have) != want {
			t.Errorf("%s is deleted with the UID %v, want %q", kind, have, want)
		}
	}

	for kind, given := range p.deleted {
		if given.UID == nil {
			t.Errorf("%s is deleted without a UID", kind)
		}
	}

	if given := p.deleted["Namespace"]; given.ResourceVersion == nil || *given.ResourceVersion == "" {
		t.Errorf("the namespace is deleted with %v, want its version", given)
	}
}
