package admission_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// bundleOf returns the certificate of a test server in PEM.
func bundleOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func testBundle(t testing.TB) []byte {
	t.Helper()

	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	return bundleOf(server)
}

// configure returns the configuration of watches. An endpoint without CAs gets one.
func configure(
	t testing.TB, endpoint admission.Endpoint, opts admission.ConfigurationOptions, watches ...watch.Watch,
) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()

	if endpoint.CABundle == nil {
		endpoint.CABundle = testBundle(t)
	}

	configuration, err := admission.WebhookConfiguration("watcher", endpoint, watches, opts)
	if err != nil {
		t.Fatal(err)
	}

	return configuration
}

var agentURL = admission.Endpoint{URL: "https://agent"}

func kymaWatch() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: "kcp-system", Name: "kyma"},
		Manager:  "lifecycle-manager",
		Resource: schema.GroupVersionResource{Group: "operator.kyma-project.io", Version: "*", Resource: "kymas"},
		Selector: watch.Selector{Labels: map[string]string{"operator.kyma-project.io/watched-by": "kyma"}},
	}
}

func moduleWatch() watch.Watch {
	return watch.Watch{
		Name:     types.NamespacedName{Namespace: "kcp-system", Name: "btp"},
		Manager:  "btp-manager",
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Field:    core.FieldStatus,
	}
}

// A configuration has each default of an API server, so that the stored object equals the applied
// object.
func TestWebhookConfiguration(t *testing.T) {
	t.Parallel()

	bundle := testBundle(t)
	endpoint := admission.Endpoint{URL: "https://127.0.0.1:8443", CABundle: bundle}
	opts := admission.ConfigurationOptions{
		Labels: map[string]string{"a": "b"}, NoMatchConditions: true,
		Canary: types.NamespacedName{Namespace: "kyma-system", Name: "agent"},
	}
	got := configure(t, endpoint, opts, kymaWatch(), moduleWatch())
	webhook := func(
		name, url, group, version, resource string, labels map[string]string,
	) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{
			Name:         name,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE", "DELETE"},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
					Scope: new(admissionregistrationv1.AllScopes),
				},
			}},
			FailurePolicy:           new(admissionregistrationv1.Ignore),
			MatchPolicy:             new(admissionregistrationv1.Equivalent),
			NamespaceSelector:       excluding("kube-system"),
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: labels},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
			TimeoutSeconds:          new(int32(2)),
			AdmissionReviewVersions: []string{"v1"},
		}
	}

	// A Scale has no labels.
	scale := webhook("kcp-system.kyma.scale.kyma-project.io", "https://127.0.0.1:8443/validate/lifecycle-manager",
		"operator.kyma-project.io", "*", "kymas/scale", nil)
	definitions := webhook("lifecycle-manager.definitions.kyma-project.io",
		"https://127.0.0.1:8443/validate/lifecycle-manager/custom.resource.definition",
		"apiextensions.k8s.io", "v1", "customresourcedefinitions", nil)
	definitions.Rules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
	definitions.Rules[0].Scope = new(admissionregistrationv1.ClusterScope)
	definitions.NamespaceSelector = &metav1.LabelSelector{}
	definitions.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name:       "watched",
		Expression: `oldObject == null || oldObject.metadata.name in ["kymas.operator.kyma-project.io"]`,
	}}
	canary := webhook("canary.operator.kyma-project.io", "https://127.0.0.1:8443/canary", "coordination.k8s.io", "v1", "leases", nil)
	canary.Rules[0].Operations = []admissionregistrationv1.OperationType{"CREATE", "UPDATE"}
	canary.Rules[0].Scope = new(admissionregistrationv1.NamespacedScope)
	canary.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "kyma-system"}}
	canary.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	canary.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "lease", Expression: `request.name == "agent"`}}
	want := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "admissionregistration.k8s.io/v1",
			Kind:       "ValidatingWebhookConfiguration",
		},
		ObjectMeta: metav1.ObjectMeta{Name: "watcher", Labels: map[string]string{
			"a": "b", "admissions.enforcer/disabled": "true",
		}},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			canary,
			webhook("kcp-system.btp.operator.kyma-project.io", "https://127.0.0.1:8443/validate/btp-manager",
				"", "v1", "configmaps/status", nil),
			webhook("kcp-system.kyma.operator.kyma-project.io", "https://127.0.0.1:8443/validate/lifecycle-manager",
				"operator.kyma-project.io", "*", "kymas", map[string]string{"operator.kyma-project.io/watched-by": "kyma"}),
			scale,
			definitions,
		},
	}

	want.Annotations = map[string]string{admission.RecordAnnotation: admission.Record(want.Webhooks)}
	compare(t, "configuration", want, got)
}

// An operator with names of its own leaves no name of another project in a runtime.
func TestNamesOfAnOperator(t *testing.T) {
	t.Parallel()

	fleet := watch.Watch{
		Name: types.NamespacedName{Namespace: "fleet", Name: "widgets.v2"}, Manager: "fleet",
		Resource: schema.GroupVersionResource{Group: "widgets.example.com", Version: "v1", Resource: "widgets"},
	}
	// A watch that is named like another one and its label.
	tricky := fleet
	tricky.Name.Name = "widgets.v2.scale"
	got := configure(t, agentURL, admission.ConfigurationOptions{
		WebhookDomain: "fleet.example.com", OwnerAnnotation: "fleet.example.com/owned-by",
		Canary: types.NamespacedName{Namespace: "fleet", Name: "canary"},
	}, fleet, tricky)

	var names []string
	for _, webhook := range got.Webhooks {
		names = append(names, webhook.Name)
	}

	want := []string{
		"canary.operator.fleet.example.com",
		"fleet.definitions.fleet.example.com",
		"fleet.widgets.v2.operator.fleet.example.com",
		"fleet.widgets.v2.scale.fleet.example.com",
		"fleet.widgets.v2.scale.operator.fleet.example.com",
		"fleet.widgets.v2.scale.scale.fleet.example.com",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}

	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "kyma") || !strings.Contains(string(text), "fleet.example.com/owned-by") {
		t.Errorf("the conditions have another owner annotation:\n%s", text)
	}
}

// The name of a webhook is a DNS-1123 subdomain.
func TestTheLongestNameOfAWatch(t *testing.T) {
	t.Parallel()
	for domain, most := range map[string]int{"": 217, "fleet.example.com": 215} {
		w := kymaWatch()
		opts := admission.ConfigurationOptions{WebhookDomain: domain}
		w.Name.Name = strings.Repeat("a", most)
		configure(t, agentURL, opts, w)

		w.Name.Name += "a"
		endpoint := admission.Endpoint{URL: "https://agent", CABundle: testBundle(t)}
		_, err := admission.WebhookConfiguration("watcher", endpoint, []watch.Watch{w}, opts)
		if !errors.Is(err, watch.ErrInvalid) || !strings.Contains(err.Error(), "has 254 bytes, want at most 253") {
			t.Errorf("domain %q: %v", domain, err)
		}
	}
}

func TestWebhookConfigurationIsDeterministic(t *testing.T) {
	t.Parallel()

	var watches []watch.Watch
	for i := range 20 {
		w := kymaWatch()
		w.Name.Name = fmt.Sprintf("watch-%02d", i)
		w.Selector.Labels = map[string]string{"a": "1", "b": "2", "c": "3"}
		watches = append(watches, w)
	}

	endpoint := admission.Endpoint{URL: "https://agent", CABundle: testBundle(t)}
	build := func() string {
		return string(marshal(t, configure(t, endpoint, admission.ConfigurationOptions{}, watches...)))
	}
	want := build()
	slices.Reverse(watches)
	if got := build(); got != want {
		t.Errorf("another order of watches gives\n%s, want\n%s", got, want)
	}
}

func TestWebhookConfigurationForAService(t *testing.T) {
	t.Parallel()
	for port, want := range map[int32]int32{0: 443, 8443: 8443} {
		endpoint := admission.Endpoint{
			Service:     types.NamespacedName{Namespace: "kyma-system", Name: "agent"},
			ServicePort: port,
			CABundle:    testBundle(t),
		}

		configuration := configure(t, endpoint, admission.ConfigurationOptions{Timeout: 5 * time.Second}, kymaWatch())
		wantConfig := admissionregistrationv1.WebhookClientConfig{
			Service: &admissionregistrationv1.ServiceReference{
				Namespace: "kyma-system", Name: "agent", Path: new("/validate/lifecycle-manager"), Port: &want,
			},
			CABundle: endpoint.CABundle,
		}

		compare(t, "client configuration", wantConfig, configuration.Webhooks[0].ClientConfig)
		if timeout := *configuration.Webhooks[0].TimeoutSeconds; timeout != 5 {
			t.Errorf("timeout %d s, want 5", timeout)
		}
	}
}

func excluding(namespaces ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: namespaces},
	}}
}

// By default, kube-system and the namespace of the service are excluded. An empty list excludes no
// namespace.
func TestExcludedNamespaces(t *testing.T) {
	t.Parallel()

	service := types.NamespacedName{Namespace: "agent-system", Name: "agent"}
	tests := map[string]struct {
		endpoint admission.Endpoint
		excluded []string
		want     *metav1.LabelSelector
	}{
		"a service": {admission.Endpoint{Service: service}, nil, excluding("agent-system", "kube-system")},
		"a URL":     {admission.Endpoint{URL: "https://agent"}, nil, excluding("kube-system")},
		"none":      {admission.Endpoint{Service: service}, []string{}, &metav1.LabelSelector{}},
		"others":    {admission.Endpoint{Service: service}, []string{"b", "a", "b"}, excluding("a", "b")},
		"in kube-system": {
			admission.Endpoint{Service: types.NamespacedName{Namespace: "kube-system", Name: "a"}},
			nil, excluding("kube-system"),
		},
		"kube-system only": {admission.Endpoint{Service: service}, []string{"kube-system"}, excluding("kube-system")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			configuration := configure(t, tt.endpoint, admission.ConfigurationOptions{ExcludedNamespaces: tt.excluded}, kymaWatch())
			compare(t, "namespace selector", tt.want, configuration.Webhooks[0].NamespaceSelector)
		})
	}
}

// TestMatchConditions checks the names of the conditions. test/subresources runs them on a real
// API server.
func TestMatchConditions(t *testing.T) {
	t.Parallel()

	configuration := configure(t, agentURL, admission.ConfigurationOptions{}, kymaWatch(), moduleWatch())

	for i, field := range []string{".status", ".spec"} {
		conditions := configuration.Webhooks[i].MatchConditions
		if len(conditions) != 2 || conditions[0].Name != "persisted" || conditions[1].Name != "changed" {
			t.Fatalf("webhook %d has conditions %v, want persisted and changed", i, conditions)
		}
		if !strings.Contains(conditions[1].Expression, "object"+field) {
			t.Errorf("webhook %d does not compare %s: %s", i, field, conditions[1].Expression)
		}
	}
}

// TestSubresources checks rules, paths and selectors. test/subresources runs them on a real API
// server.
func TestSubresources(t *testing.T) {
	t.Parallel()

	type webhook struct{ name, resource, path string }
	const own, scale = "a.b.operator.kyma-project.io", "a.b.scale.kyma-project.io"
	definitions := webhook{
		"m.definitions.kyma-project.io", "customresourcedefinitions", "/validate/m/custom.resource.definition",
	}
	apps := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	core1 := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	widgets := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "widgets"}
	tests := map[string]struct {
		watch watch.Watch
		want  []webhook
	}{
		"Deployments": {watch.Watch{Resource: apps}, []webhook{
			{own, "deployments", "/validate/m"}, {scale, "deployments/scale", "/validate/m/deployment"},
		}},
		"their status": {
			watch.Watch{Resource: apps, Field: core.FieldStatus},
			[]webhook{{own, "deployments/status", "/validate/m"}},
		},
		"ConfigMaps":     {watch.Watch{Resource: core1("configmaps")}, []webhook{{own, "configmaps", "/validate/m"}}},
		"evictions":      {watch.Watch{Resource: core1("pods/eviction")}, []webhook{{own, "pods/eviction", "/validate/m/pod"}}},
		"another's kind": {watch.Watch{Resource: core1("foos/bar")}, []webhook{{own, "foos/bar", "/validate/m"}}},
		"a custom resource": {watch.Watch{Resource: widgets}, []webhook{
			{own, "widgets", "/validate/m"}, {scale, "widgets/scale", "/validate/m"}, definitions,
		}},
		"its kind": {watch.Watch{Resource: widgets, Kind: "MyWidget"}, []webhook{
			{own, "widgets", "/validate/m"}, {scale, "widgets/scale", "/validate/m/my.widget"}, definitions,
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			tt.watch.Name = types.NamespacedName{Namespace: "a", Name: "b"}
			tt.watch.Manager = "m"
			var got []webhook
			for _, w := range configure(t, agentURL, admission.ConfigurationOptions{}, tt.watch).Webhooks {
				path := strings.TrimPrefix(*w.ClientConfig.URL, "https://agent")
				got = append(got, webhook{w.Name, w.Rules[0].Resources[0], path})
				if manager, ok := admission.ManagerOf(path); manager != "m" || !ok {
					t.Errorf("ManagerOf(%s) = %q, %t", path, manager, ok)
				}
			}

			compare(t, "webhooks", tt.want, got, cmpopts.EquateComparable(webhook{}))
		})
	}
}

// TestPreciseWatch checks selectors and conditions of a watch, beside those of the configuration.
func TestPreciseWatch(t *testing.T) {
	t.Parallel()

	inTest := metav1.LabelSelectorRequirement{Key: "stage", Operator: metav1.LabelSelectorOpIn, Values: []string{"test"}}
	required := []watch.Requirement{{Key: "stage", Operator: "In", Values: []string{"test"}}}
	precise := kymaWatch()
	precise.Selector.Requirements = required
	precise.NamespaceSelector = watch.Selector{Labels: map[string]string{"a": "b"}, Requirements: required}
	precise.Conditions = []watch.Condition{{Name: "mine", Expression: "true"}}
	conditions := []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "true"}}
	configuration := configure(t, agentURL, admission.ConfigurationOptions{}, precise)
	namespaces := excluding("kube-system")
	namespaces.MatchLabels = map[string]string{"a": "b"}
	namespaces.MatchExpressions = append([]metav1.LabelSelectorRequirement{inTest}, namespaces.MatchExpressions...)
	objects := &metav1.LabelSelector{
		MatchLabels: precise.Selector.Labels, MatchExpressions: []metav1.LabelSelectorRequirement{inTest},
	}
	for i, want := range []*metav1.LabelSelector{objects, {}} { // The second webhook is that of scale.
		webhook := configuration.Webhooks[i]
		compare(t, webhook.Name+": object selector", want, webhook.ObjectSelector)
		compare(t, webhook.Name+": namespace selector", namespaces, webhook.NamespaceSelector)
		compare(t, webhook.Name+": conditions", conditions, webhook.MatchConditions[2:])
	}
}

func TestWebhookConfigurationHasEachFieldOfAWatch(t *testing.T) {
	t.Parallel()

	endpoint := admission.Endpoint{URL: "https://agent", CABundle: testBundle(t)}
	whole, changed := watchtest.Watches()
	all := configure(t, endpoint, admission.ConfigurationOptions{}, whole)
	for path, w := range changed {
		if cmp.Equal(all.Webhooks, configure(t, endpoint, admission.ConfigurationOptions{}, w).Webhooks) {
			t.Errorf("configuration drops %s", path)
		}
	}
}

// A later change of an argument does not change the configuration.
func TestWebhookConfigurationKeepsNothing(t *testing.T) {
	t.Parallel()

	kyma := kymaWatch()
	endpoint := admission.Endpoint{URL: "https://agent/", CABundle: testBundle(t)}
	opts := admission.ConfigurationOptions{Labels: map[string]string{"a": "b"}}
	configuration := configure(t, endpoint, opts, kyma)
	before := string(marshal(t, configuration))
	kyma.Selector.Labels["more"], opts.Labels["more"], endpoint.CABundle[0] = "x", "x", 'x'
	if after := string(marshal(t, configuration)); after != before {
		t.Errorf("changed with its input to\n%s, want\n%s", after, before)
	}
}

// Each invalid part is refused, and the error names it.
func TestWebhookConfigurationRefuses(t *testing.T) {
	t.Parallel()

	bundle := testBundle(t)
	private := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte{1}})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})
	type input struct {
		endpoint admission.Endpoint
		watches  []watch.Watch
		opts     admission.ConfigurationOptions
	}

	endpoint := func(change func(*admission.Endpoint)) func(*input) {
		return func(in *input) { change(&in.endpoint) }
	}
	tests := []struct {
		want   string
		change func(*input)
	}{
		{"timeout: want 1 s to 30 s", func(in *input) { in.opts.Timeout = time.Minute }},
		{"timeout: want 1 s to 30 s", func(in *input) { in.opts.Timeout = 1500 * time.Millisecond }},
		{`namespaces: want names, have ["a" "a.b"]`, func(in *input) { in.opts.ExcludedNamespaces = []string{"a", "a.b"} }},
		{`canary: want names, have "a/B"`, func(in *input) { in.opts.Canary = types.NamespacedName{Namespace: "a", Name: "B"} }},
		{`webhook domain: want a DNS-1123 subdomain, have "A.b"`, func(in *input) { in.opts.WebhookDomain = "A.b" }},
		{`OwnerAnnotation: want the name of an annotation, [<DNS-1123 subdomain>/]<name>, have "it's"`, func(in *input) {
			in.opts.OwnerAnnotation = "it's"
		}},
		{"have neither", endpoint(func(e *admission.Endpoint) { e.URL = "" })},
		{"want an https URL", endpoint(func(e *admission.Endpoint) { e.URL = "http://agent" })},
		{"want an https URL", endpoint(func(e *admission.Endpoint) { e.URL = "https://user:secret@agent" })},
		{"DNS name or an IP address", endpoint(func(e *admission.Endpoint) { e.URL = "https://agent,other" })},
		{"have both", endpoint(func(e *admission.Endpoint) { e.Service.Name = "agent" })},
		{"at least one certificate", endpoint(func(e *admission.Endpoint) { e.CABundle = nil })},
		{"at least one certificate", endpoint(func(e *admission.Endpoint) { e.CABundle = []byte("no PEM") })},
		{
			"private key does not belong here",
			endpoint(func(e *admission.Endpoint) { e.CABundle = slices.Concat(bundle, private) }),
		},
		{`block "CERTIFICATE" is skipped`, endpoint(func(e *admission.Endpoint) { e.CABundle = slices.Concat(bundle, broken) })},
		{"a line end is missing", endpoint(func(e *admission.Endpoint) {
			e.CABundle = slices.Concat(bytes.TrimRight(bundle, "\n"), bundle)
		})},
		{"indented", endpoint(func(e *admission.Endpoint) {
			e.CABundle = slices.Concat(bundle, []byte("  "), bundle)
		})},
		{"byte order mark", endpoint(func(e *admission.Endpoint) {
			e.CABundle = slices.Concat([]byte("\ufeff"), bundle, bundle)
		})},
		{"cut off", endpoint(func(e *admission.Endpoint) {
			e.CABundle = slices.Concat(bundle, bundle[:len(bundle)/2])
		})},
		{`invalid watch "kcp-system/kyma": resource "*"`, func(in *input) { in.watches[0].Resource.Resource = "*" }},
		{"duplicate name", func(in *input) { in.watches = append(in.watches, in.watches[0]) }},
		{`have neither | CA bundle | watch "kcp-system/kyma": manager | "data"`, func(in *input) {
			in.endpoint = admission.Endpoint{}
			in.watches[0].Manager = ""
			in.watches[0].Field = "data"
		}},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()

			in := &input{
				endpoint: admission.Endpoint{URL: "https://agent", CABundle: bundle},
				watches:  []watch.Watch{kymaWatch()},
			}
			tt.change(in)
			configuration, err := admission.WebhookConfiguration("watcher", in.endpoint, in.watches, in.opts)
			if configuration != nil || !core.IsPermanent(err) || core.ReasonOf(err) != "invalid_configuration" {
				t.Fatalf("WebhookConfiguration = %v, %v, want the reason invalid_configuration", configuration, err)
			}

			for want := range strings.SplitSeq(tt.want, " | ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestWebhookConfigurationWithoutWatches(t *testing.T) {
	t.Parallel()
	if c := configure(t, agentURL, admission.ConfigurationOptions{}); len(c.Webhooks) != 0 {
		t.Errorf("%v, want a configuration without webhooks", c)
	}
}

func TestManagerOfIsTheInverseOfPath(t *testing.T) {
	for path, want := range map[string]core.Manager{
		"/validate/kyma":              "kyma",
		"/validate/kyma/stateful.set": "kyma", "/validate/kyma/B": "", "/validate/kyma/": "", "/validate/kyma/b/c": "",
		"/validate/": "", "/validate/A": "", "kyma": "", "/canary": "", "": "",
	} {
		if got, ok := admission.ManagerOf(path); ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %t, want %q", path, got, ok, want)
		}
	}
}

// Spellings of one URL give one address, because an API server compares the host with the
// certificate.
func TestWebhookURLHasOneForm(t *testing.T) {
	t.Parallel()
	for spelling, want := range map[string]string{
		"https://agent.example.com":        "https://agent.example.com/validate/kyma",
		"https://Agent.example.com./":      "https://agent.example.com/validate/kyma",
		"https://agent.example.com.:8443/": "https://agent.example.com:8443/validate/kyma",
		"https://bücher.example/prefix/":   "https://xn--bcher-kva.example/prefix/validate/kyma",
		"https://[FD00:0::1]:8443":         "https://[fd00::1]:8443/validate/kyma",
	} {
		ca, err := testpki.NewCA("ca", testpki.Options{})
		if err != nil {
			t.Fatal(err)
		}

		watches := []watch.Watch{{
			Name: types.NamespacedName{Namespace: "kcp", Name: "w"}, Manager: "kyma",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		}}
		got, err := admission.WebhookConfiguration("c", admission.Endpoint{URL: spelling, CABundle: ca.PEM}, watches,
			admission.ConfigurationOptions{})
		if err != nil {
			t.Errorf("%s: %v", spelling, err)
			continue
		}

		if have := *got.Webhooks[0].ClientConfig.URL; have != want {
			t.Errorf("%s: %s, want %s", spelling, have, want)
		}
	}
}
