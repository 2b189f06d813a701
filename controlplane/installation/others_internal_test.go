package installation

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// renew makes an installer with the present options of a place.
func (p *place) renew() {
	p.t.Helper()
	p.installer = must(New(Parts{Image: "agent.example.com/agent:v1", ControlPlane: "kcp.example.com:443"}, p.opts))
}

// exclude adds a requirement to the namespace selector of each webhook, as a platform does.
func (p *place) exclude(key, value string) {
	p.t.Helper()

	live := p.configuration()
	webhooks := webhooksOf(live)
	for _, webhook := range webhooks {
		fields := webhook.(map[string]any)
		whole := selectorOf(fields["namespaceSelector"])
		whole.MatchExpressions = append(whole.MatchExpressions, notIn(key, value))
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(whole)
		if err != nil {
			p.t.Fatal(err)
		}

		fields["namespaceSelector"] = content
	}

	live.Object["webhooks"] = webhooks
	if err := p.client.Update(p.t.Context(), live); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) excludes(key string) bool {
	p.t.Helper()

	for _, webhook := range webhooksOf(p.configuration()) {
		whole := selectorOf(webhook.(map[string]any)["namespaceSelector"])
		if slices.ContainsFunc(whole.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key }) {
			return true
		}
	}

	return false
}

func (p *place) namespace(name string, labels map[string]string) {
	p.t.Helper()
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// An exclusion of a platform's own namespaces is kept. That of another namespace is removed once. If
// it comes back, it is kept, and the status names the namespace.
func TestAnExclusionIsRemovedOnce(t *testing.T) {
	p := newPlace(t, Options{})
	p.settle()
	p.namespace("shop", map[string]string{"of": "shop"})
	p.namespace("kube-system", map[string]string{"of": "platform"})

	p.exclude("of", "platform")
	status := p.settle()
	if status.State != Ready || !p.excludes("of") || !strings.Contains(status.Notice, "of") {
		t.Fatalf("a platform excludes its own namespace: %+v, kept: %t, want it ready and kept", status, p.excludes("of"))
	}

	p.runtime.Verify = true
	if status = p.settle(); status.State != Ready || !p.excludes("of") {
		t.Errorf("a second visit: %+v, kept: %t", status, p.excludes("of"))
	}

	p.exclude("of", "shop")
	if _, err := p.install(); err != nil {
		t.Fatal(err)
	}
	if text := selectorOf(webhooksOf(p.configuration())[0].(map[string]any)["namespaceSelector"]).String(); strings.Contains(text, "shop") {
		t.Errorf("the first exclusion of a namespace stays: %s", text)
	}

	p.settle()

	p.exclude("of", "platform")
	p.exclude("of", "shop")
	status = p.settle()
	if status.State != Failed || status.Reason != ReasonWebhooksContested || !strings.Contains(status.Message, "1 namespaces, shop") {
		t.Errorf("the exclusion that comes back: %+v, want it contested, with the namespace", status)
	}

	if status.Available != 2 || status.Replicas != 2 {
		t.Errorf("contested: %+v, want the numbers of agents, too", status)
	}

	p.runtime.Verify = false
	again, err := p.install()
	if err != nil || again.State != Failed || again.Reason != ReasonWebhooksContested || len(p.writes) > 0 {
		t.Errorf("without a change: %+v, %v and the writes %v, want it contested without a write", again, err, p.writes)
	}
}

// The objects of the canary go when it is turned off, and only then.
func TestACanaryThatIsTurnedOffGoes(t *testing.T) {
	p := newPlace(t, Options{})
	present := func() (n int) {
		for _, object := range p.installer.manifests.removable(partCanary) {
			err := p.client.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			if client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			if err == nil {
				n++
			}
		}
		return n
	}

	p.opts.NoCanary = false
	p.renew()
	p.settle()
	if n, all := present(), len(p.installer.manifests.removable(partCanary)); n == 0 || n != all {
		t.Errorf("%d of %d objects of the canary are there, want all", n, all)
	}

	p.opts.NoCanary = true
	p.renew()
	p.settle()
	if n := present(); n != 0 {
		t.Errorf("%d objects of the canary are left, want none", n)
	}
}

// The agents get the settings of the canary if there is one, and the name of the configuration, that
// has another value.
func TestTheCanaryOfTheAgents(t *testing.T) {
	for name, tt := range map[string]struct {
		opts                 Options
		lease, configuration string
	}{
		"default":  {Options{ConfigurationName: "other"}, "runtime-watcher/runtime-watcher-canary", "other"},
		"none":     {Options{ConfigurationName: "other", NoCanary: true}, "", ""},
		"informer": {Options{ConfigurationName: "other", Informer: true}, "", ""},
		"names":    {Options{Namespace: "ns", Name: "agent"}, "ns/agent-canary", "runtime-watcher"},
	} {
		i := must(New(Parts{Image: "image", ControlPlane: "a:443"}, tt.opts))
		have := map[string]string{}
		for _, variable := range i.rendererOf(&Runtime{ID: "prod"}).renderEnvironment("/tls") {
			have[variable.Name] = variable.Value
		}

		if have[settingCanary] != tt.lease || have[settingConfiguration] != tt.configuration {
			t.Errorf("%s: lease %q and configuration %q, want %q and %q", name, have[settingCanary], have[settingConfiguration],
				tt.lease, tt.configuration)
		}
	}
}

// The exact bound of a name, from which the names of pods are made.
func TestTheLongestName(t *testing.T) {
	for n, fits := range map[int]bool{maxName: true, maxName + 1: false} {
		_, err := New(Parts{Image: "image", ControlPlane: "a:443"}, Options{Name: strings.Repeat("a", n)})
		if (err == nil) != fits {
			t.Errorf("a name of %d characters: %v, want it taken: %t", n, err, fits)
		}
	}
}

// Heartbeats need contract v3, which is the default.
func TestAgentsSendHeartbeatsWithV3(t *testing.T) {
	for contract, want := range map[string]bool{"": true, "v1": false, "v2": false, "v3": true} {
		for _, setting := range []string{settingContract, formerContract} {
			opts := Options{Namespace: "ns", Name: "agent"}
			if contract != "" {
				opts.Settings = map[string]string{setting: contract}
			}

			service, have := must(New(Parts{Image: "image", ControlPlane: "a:443"}, opts)).Agents()
			if have != want || service.String() != "ns/agent" {
				t.Errorf("%s=%s: Service %s and heartbeats %t, want ns/agent and %t", setting, contract, service, have, want)
			}
		}
	}

	opts := Options{Informer: true}
	if service, _ := must(New(Parts{Image: "image", ControlPlane: "a:443"}, opts)).Agents(); service.Name != "" {
		t.Errorf("agents that watch have the Service %s, want none", service)
	}
}

// undeletable refuses to delete objects of one kind.
type undeletable struct {
	client.Client

	kind string
}

var errUndeletable = errors.New("no right to delete")

func (u undeletable) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if object.GetObjectKind().GroupVersionKind().Kind == u.kind {
		return errUndeletable
	}
	return u.Client.Delete(ctx, object, opts...)
}

// A removal that fails is an error, whichever object stays. What was not reached yet stays, too: the
// ConfigMap is last, and the webhook configuration is first.
func TestARemovalThatFailsIsAnError(t *testing.T) {
	for _, kind := range []string{"ValidatingWebhookConfiguration", "Deployment", "Service", "ConfigMap", "Namespace"} {
		p := newPlace(t, Options{})
		p.settle()
		p.runtime.Client = documents{Client: undeletable{p.runtime.Client, kind}, texts: map[string]string{
			"/apis": `{"kind": "APIGroupList"}`, "/api/v1": `{"kind": "APIResourceList"}`,
		}}

		status, err := p.installer.Uninstall(t.Context(), p.runtime)
		if !errors.Is(err, errUndeletable) || status.State != "" {
			t.Errorf("%s stays: %+v, %v, want an error without a state", kind, status, err)
		}

		configuration := p.installer.opts.bareConfiguration()
		gone := apierrors.IsNotFound(p.client.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration))
		if gone == (kind == "ValidatingWebhookConfiguration") {
			t.Errorf("%s stays: the webhook configuration is gone: %t", kind, gone)
		}

		marked := p.client.Get(t.Context(), client.ObjectKey{
			Namespace: p.installer.opts.Namespace, Name: p.installer.opts.managersName(),
		}, &corev1.ConfigMap{}) == nil
		if marked == (kind == "Namespace") {
			t.Errorf("%s stays: the ConfigMap, which marks the runtime, is there: %t", kind, marked)
		}
	}
}
