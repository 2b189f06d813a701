package names_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func TestDefaultsAreThoseOfLifecycleManager(t *testing.T) {
	t.Parallel()

	want := names.Names{
		Group: "operator.kyma-project.io", Kind: "Watcher", Plural: "watchers",
		Prefix: "operator.kyma-project.io", Finalizer: "operator.kyma-project.io/runtime-watcher",
		DomainAnnotation: "skr-domain", OwnerAnnotation: "operator.kyma-project.io/owned-by",
		WebhookDomain: "kyma-project.io",
	}
	if diff := cmp.Diff(want, names.Names{}.WithDefaults()); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if err := (names.Names{}).Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}

	const managedBy, installedBy = "operator.kyma-project.io/managed-by", "operator.kyma-project.io/installed-by"
	if got := (names.Names{}).ManagedBy(); got != managedBy {
		t.Errorf("ManagedBy is %s, want %s", got, managedBy)
	}
	if got := (names.Names{}).InstalledBy(); got != installedBy {
		t.Errorf("InstalledBy is %s, want %s", got, installedBy)
	}
	if got, want := (names.Names{}).MaxName(), 63+164; got != want {
		t.Errorf("MaxName is %d, want %d, as in the definition", got, want)
	}
}

// The agent and the listener have defaults of their own, as they do not know this package.
func TestDefaultsOfTheOtherEnds(t *testing.T) {
	t.Parallel()

	defaults := names.Names{}.WithDefaults()
	if defaults.OwnerAnnotation != core.OwnerAnnotation {
		t.Errorf("agents read the owner in %s, not in %s", core.OwnerAnnotation, defaults.OwnerAnnotation)
	}
	if defaults.DomainAnnotation != controllerruntime.DomainAnnotation {
		t.Errorf("listeners read the domain in %s, not in %s", controllerruntime.DomainAnnotation, defaults.DomainAnnotation)
	}

	endpoint := admission.Endpoint{URL: "https://agent", CABundle: bundle(t)}
	lease := types.NamespacedName{Namespace: "default", Name: "canary"}
	configuration, err := admission.WebhookConfiguration("watcher", endpoint, nil, admission.ConfigurationOptions{Canary: lease})
	if err != nil {
		t.Fatal(err)
	}

	if name := configuration.Webhooks[0].Name; name != "canary.operator."+defaults.WebhookDomain {
		t.Errorf("webhook %s has another domain than %s", name, defaults.WebhookDomain)
	}
}

func bundle(t *testing.T) []byte {
	t.Helper()

	ca, err := testpki.NewCA("ca", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	return ca.PEM
}

// Whoever sets the group gets no name of another project.
func TestGroupDecidesAllOthers(t *testing.T) {
	t.Parallel()

	tests := map[string]struct{ have, want names.Names }{
		"group": {names.Names{Group: "fleet.example.com"}, names.Names{
			Group: "fleet.example.com", Kind: "Watcher", Plural: "watchers",
			Prefix: "fleet.example.com", Finalizer: "fleet.example.com/runtime-watcher",
			DomainAnnotation: "fleet.example.com/domain", OwnerAnnotation: "fleet.example.com/owned-by",
			WebhookDomain: "fleet.example.com",
		}},
		"kind and prefix": {names.Names{Group: "operator.acme.io", Kind: "FleetPolicy", Prefix: "acme.io"}, names.Names{
			Group: "operator.acme.io", Kind: "FleetPolicy", Plural: "fleetpolicies",
			Prefix: "acme.io", Finalizer: "acme.io/runtime-watcher",
			DomainAnnotation: "acme.io/domain", OwnerAnnotation: "acme.io/owned-by",
			WebhookDomain: "acme.io",
		}},
		"all": {every(), every()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(test.want, test.have.WithDefaults()); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if err := test.have.Validate(); err != nil {
				t.Error(err)
			}
			if gvk := test.have.GroupVersionKind(); gvk.Group != test.want.Group || gvk.Kind != test.want.Kind ||
				gvk.Version != "v1beta2" {
				t.Errorf("kind is %v", gvk)
			}
		})
	}
}

func every() names.Names {
	return names.Names{
		Group: "g.example", Kind: "Watch", Plural: "watches", Prefix: "p.example", Finalizer: "f.example/hold",
		DomainAnnotation: "d.example/host", OwnerAnnotation: "o.example/owner", WebhookDomain: "w.example",
	}
}

func TestValidateNamesEachMistake(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("a", 60) + "."
	tests := map[string]struct {
		have names.Names
		want []string
	}{
		"group without a dot":     {names.Names{Group: "fleet"}, []string{"Group: want a group with a dot"}},
		"group in upper case":     {names.Names{Group: "Fleet.example.com"}, []string{"Group: ", "Prefix: ", "WebhookDomain: "}},
		"group of Kubernetes":     {names.Names{Group: "fleet.k8s.io"}, []string{"Group: want a domain of your own"}},
		"prefix of Kubernetes":    {names.Names{Prefix: "kubernetes.io"}, []string{"Prefix: want a domain of your own"}},
		"prefix with a slash":     {names.Names{Prefix: "fleet.example.com/"}, []string{"Prefix: "}},
		"kind in lower case":      {names.Names{Kind: "watcher"}, []string{"Kind: want upper camel case"}},
		"kind of a list":          {names.Names{Kind: "WatcherList"}, []string{"Kind: "}},
		"plural in upper case":    {names.Names{Plural: "Watchers"}, []string{"Plural: "}},
		"definition too long":     {names.Names{Group: long + long + long + long + "io"}, []string{"Plural and Group: "}},
		"finalizer without slash": {names.Names{Finalizer: "runtime-watcher"}, []string{"Finalizer: want <domain>/<name>"}},
		"former finalizer": {
			names.Names{Finalizer: "operator.kyma-project.io/watcher"}, []string{"Finalizer: want a finalizer other than"},
		},
		"two slashes": {
			names.Names{DomainAnnotation: "a/b/c", OwnerAnnotation: "it's/owner"},
			[]string{"DomainAnnotation: ", "OwnerAnnotation: "},
		},
		"long domain": {names.Names{WebhookDomain: long + long + "io"}, []string{"WebhookDomain: want at most 116 characters, have 124"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := test.have.Validate()
			if err == nil {
				t.Fatal("accepted")
			}

			for _, text := range test.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
		})
	}
}
