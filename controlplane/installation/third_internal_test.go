package installation

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
)

// The names are those of lifecycle-manager: its Deployment, or a NetworkPolicy, must be found to be
// removed.
func TestFormerObjectsHaveTheirKinds(t *testing.T) {
	t.Parallel()

	const both = `
		admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration /N
		apps/v1 Deployment kyma-system/N
		v1 Service kyma-system/N
		v1 Service kyma-system/N-metrics
		networking.k8s.io/v1 NetworkPolicy kyma-system/kyma-project.io--P-to-apiserver
		networking.k8s.io/v1 NetworkPolicy kyma-system/kyma-project.io--P-to-dns
		networking.k8s.io/v1 NetworkPolicy kyma-system/kyma-project.io--seed-to-P
		networking.k8s.io/v1 NetworkPolicy kyma-system/kyma-project.io--metrics-to-P
		scheduling.k8s.io/v1 PriorityClass /N-priority`

	have := func(former []string) string { slices.Sort(former); return strings.Join(former, "\n") }
	for name, tt := range map[string]struct {
		former      []string
		names, more string
	}{
		"present": {describe("kyma-system", false), "skr-webhook watcher", `
			rbac.authorization.k8s.io/v1 ClusterRoleBinding /read-kymas
			rbac.authorization.k8s.io/v1 ClusterRole /kyma-reader
			v1 ServiceAccount kyma-system/N-sa
			v1 Secret kyma-system/N-tls`},
		"renamed": {describe("kyma-system", true), "runtime-watcher " + "runtime-watcher", `
			v1 Secret kyma-system/N-client`},
	} {
		parts := strings.Fields(tt.names)
		want := strings.NewReplacer("N", parts[0], "P", parts[1])
		var lines []string

		for line := range strings.Lines(both + tt.more) {
			if fields := strings.Fields(line); len(fields) == 3 {
				fields[2] = want.Replace(fields[2])
				lines = append(lines, strings.Join(fields, " "))
			}
		}

		if wanted, got := have(lines), have(tt.former); got != wanted {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, wanted)
		}
	}
}

// describe returns apiVersion, kind, namespace and name of each former object.
func describe(namespace string, renamed bool) (all []string) {
	objects := SKRWebhook(namespace)
	if renamed {
		objects = RenamedSKRWebhook(namespace)
	}

	for _, object := range objects {
		all = append(all, object.GetAPIVersion()+" "+object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName())
	}

	return all
}

// An object that does not decide has the mark of another installer, or no mark. Nothing is written.
func TestOneObjectOfOthersIsEnough(t *testing.T) {
	for name, tt := range map[string]struct {
		mark string
		want error
	}{
		"of another installer": {"another", errOwned},
		"without a mark":       {"", errForeign},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, Options{})
			service := &corev1.Service{}
			service.Namespace = p.installer.opts.Namespace
			service.Name = p.installer.opts.Name

			if tt.mark != "" {
				service.Annotations = map[string]string{p.installer.opts.Names.InstalledBy(): tt.mark}
			}

			p.create(service)

			if status, err := p.install(); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v, want %v", status, err, tt.want)
			}
			if len(p.writes) > 0 {
				t.Errorf("the writes %v beside an object of others", p.writes)
			}
		})
	}
}

// The configuration has the labels of the operator beside ours. It gets back one that others have
// removed.
func TestLabelsOfTheConfiguration(t *testing.T) {
	p := newPlace(t, Options{Webhooks: admission.ConfigurationOptions{Labels: map[string]string{"team": "fleet"}}})
	p.settle()
	want := map[string]string{"team": "fleet", "app.kubernetes.io/name": p.installer.opts.Name}

	check := func(when string) {
		t.Helper()

		labels := p.configuration().GetLabels()
		for key, value := range want {
			if labels[key] != value {
				t.Errorf("%s: label %s is %q, want %q", when, key, labels[key], value)
			}
		}
	}
	check("after the installation")

	for key := range want {
		live := p.configuration()
		labels := live.GetLabels()
		delete(labels, key)
		live.SetLabels(labels)

		if err := p.client.Update(t.Context(), live); err != nil {
			t.Fatal(err)
		}

		p.runtime.Verify = true
		if _, err := p.install(); err != nil {
			t.Fatal(err)
		}

		check("after others removed " + key)
	}
}

// A runtime chooses the JSON of its webhooks. One with another name than a text is an unknown webhook.
func TestANameThatIsNoText(t *testing.T) {
	t.Parallel()

	configuration := func(name any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"webhooks": []any{map[string]any{"name": name, "timeoutSeconds": int64(3)}},
		}}
	}

	live := configuration(map[string]any{"w": "w"})
	ours := configuration("w")
	keepShorterTimeouts(live, ours)
	if additions := findAdditions(live, ours); len(additions) > 0 {
		t.Errorf("additions %v of an unknown webhook, want none", additions)
	}

	if present := presentIn(live, webhooksOf(ours)); len(present) > 0 {
		t.Errorf("the webhooks %v are present, want none", present)
	}
}
