package webhookconfig_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/cmd/agent/internal/webhookconfig"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func caFile(t *testing.T) string {
	t.Helper()

	ca, err := testpki.NewCA("test", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

const watchers = `
apiVersion: operator.kyma-project.io/v1beta2
kind: Watcher
metadata:
  name: moving
  namespace: kcp-system
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
spec:
  resourceToWatch: {group: operator.kyma-project.io, version: "*", resource: kymas, kind: Kyma}
  labelsToWatch: {operator.kyma-project.io/watched-by: kyma}
  labelExpressionsToWatch: [{key: stage, operator: In, values: [live]}]
  namespaceSelector: {matchLabels: {team: blue}}
  serviceInfo: {name: events, namespace: kcp-system, port: 80}
  gateway: {selector: {matchLabels: {a: b}}}
---
apiVersion: v1
kind: List
items:
- apiVersion: operator.kyma-project.io/v1beta2
  kind: Watcher
  metadata: {name: steady, namespace: kcp-system}
  spec:
    manager: other
    field: status
    resourceToWatch: {group: "", version: v1, resource: configmaps}
`

func run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer
	err := webhookconfig.Run(args, strings.NewReader(stdin), &out)
	return out.String(), err
}

func TestWatchersBecomeAConfiguration(t *testing.T) {
	text, err := run(t, watchers, "--ca-cert", caFile(t), "-f", "-", "--canary", "runtime-watcher/canary")
	if err != nil {
		t.Fatal(err)
	}

	var have admissionregistrationv1.ValidatingWebhookConfiguration
	if err := yaml.UnmarshalStrict([]byte(text), &have); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	for _, want := range []string{"team: blue", "key: stage", "name: persisted"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}

	paths := map[string]string{}
	for _, w := range have.Webhooks {
		paths[w.Name] = *w.ClientConfig.Service.Path
	}

	want := map[string]string{
		"kcp-system.moving.operator.kyma-project.io": "/validate/lifecycle-manager",
		"kcp-system.moving.scale.kyma-project.io":    "/validate/lifecycle-manager/kyma",
		"kcp-system.steady.operator.kyma-project.io": "/validate/other",
		"canary.operator.kyma-project.io":            "/canary",
		// It is called for the deletion of the definition of Kymas.
		"lifecycle-manager.definitions.kyma-project.io": "/validate/lifecycle-manager/custom.resource.definition",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("webhooks (-want +got):\n%s", diff)
	}
}

func TestOneWatchFromFlags(t *testing.T) {
	text, err := run(t, "", "--ca-cert", caFile(t), "--manager", "my-operator", "--resource", "apps/v1/deployments",
		"--service", "watcher/agent:8443", "--name", "mine", "--canary", "", "--exclude-namespaces", "")
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		"kind: ValidatingWebhookConfiguration", "name: mine", "- deployments", "- apps", "port: 8443",
		"failurePolicy: Ignore", "- kube-system",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
}

func TestMistakesAreNamedAtOnce(t *testing.T) {
	ca := caFile(t)
	one := func(resource string) []string {
		return []string{"--ca-cert", ca, "--manager", "m", "--resource", resource}
	}

	file := []string{"--ca-cert", ca, "-f", "-"}
	for name, test := range map[string]struct {
		stdin string
		args  []string
		want  []string
	}{
		"each argument": {
			"",
			[]string{"--ca-cert", "missing.crt", "--service", "no-namespace", "--canary", "x", "stray"},
			[]string{"--ca-cert", "missing.crt", "--service", "--canary", "stray", "--manager and --resource"},
		},
		"one watch": {
			"",
			[]string{"--ca-cert", "", "--manager", "Foo_", "--resource", "configmaps"},
			[]string{"--ca-cert: want", `"Foo_"`, `--resource: "configmaps"`},
		},
		// A subresource is no resource: v1/configmaps/status would be the resource status of group v1.
		"the status":         {"", one("v1/configmaps/status"), []string{"field status"}},
		"the status of apps": {"", one("apps/v1/deployments/status"), []string{"field status"}},
		"scale":              {"", one("v1beta1/widgets/scale"), []string{"field status"}},
		"another kind":       {"kind: Pod\n", file, nil},
		"nothing":            {"\n---\n", file, nil},
		"no YAML":            {"a: [", file, nil},
		"a list of others":   {"kind: List\nitems: [{kind: Pod}]\n", file, nil},
		// A condition that fails loses writes, and the agent cannot check conditions.
		"a condition": {
			`{kind: Watcher, metadata: {name: precise}, spec: {matchConditions: [{name: a, expression: "true"}]}}`, file,
			[]string{"precise", "spec.matchConditions"},
		},
	} {
		_, err := run(t, test.stdin, test.args...)
		if !errors.Is(err, webhookconfig.ErrUsage) {
			t.Errorf("%s: error %v, want wrong arguments", name, err)
			continue
		}

		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not name %s", name, err, want)
			}
		}
	}
}

func TestMatchConditionsCanBeTurnedOff(t *testing.T) {
	text, err := run(t, "", "--ca-cert", caFile(t), "--manager", "m", "--resource", "v1/configmaps", "--match-conditions=false")
	if err != nil || strings.Contains(text, "matchConditions") {
		t.Errorf("error %v, want no conditions in:\n%s", err, text)
	}
}

func TestNamesOfAnOperator(t *testing.T) {
	args := []string{
		"--ca-cert", caFile(t), "--manager=fleet", "--resource=widgets.example.com/v1/widgets",
		"--webhook-domain=fleet.example.com", "--owner-annotation=fleet.example.com/owned-by",
	}

	out, err := run(t, "", args...)
	if err != nil || strings.Contains(out, "kyma") || !strings.Contains(out, "default.fleet.operator.fleet.example.com") ||
		!strings.Contains(out, "fleet.example.com/owned-by") {
		t.Errorf("%v, printed\n%s", err, out)
	}
	if _, err := run(t, "", append(args, "--webhook-domain=A")...); err == nil {
		t.Error("a domain in upper case is accepted")
	}
}

func TestHelp(t *testing.T) {
	text, err := run(t, "", "--help")
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(text, "-ca-cert") || !strings.Contains(text, "kubectl apply") {
		t.Errorf("help %q, error %v", text, err)
	}
}

// A block of --ca-cert that an API server cannot use is named in a comment, and not written.
func TestBundlesOfOtherTools(t *testing.T) {
	one, err := testpki.NewCA("one", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	two, err := testpki.NewCA("two", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}

	crl := "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"
	a := string(one.PEM)
	b := string(two.PEM)

	for name, tc := range map[string]struct{ bundle, fault, comment string }{
		"two":               {a + b, "", ""},
		"a CRL":             {a + crl + b, "", "X509 CRL"},
		"no line end":       {strings.TrimSpace(a) + b, "line end is missing", ""},
		"the second is cut": {a + b[:len(b)/2], "cut off", ""},
		"indented":          {a + "  " + b, "indented", ""},
		"empty":             {"\n", "PEM blocks", ""},
	} {
		path := filepath.Join(t.TempDir(), "ca.crt")
		if err := os.WriteFile(path, []byte(tc.bundle), 0o600); err != nil {
			t.Fatal(err)
		}

		out, err := run(t, watchers, "--ca-cert", path, "-f", "-")
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v, want %q", name, err, tc.fault)
			}
			continue
		}

		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		if err := errors.Join(err, yaml.Unmarshal([]byte(out), &configuration)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if have := string(configuration.Webhooks[0].ClientConfig.CABundle); have != a+b {
			t.Errorf("%s: bundle %q, want both CAs", name, have)
		}
		if strings.HasPrefix(out, "# ") != (tc.comment != "") || !strings.Contains(out, tc.comment) {
			t.Errorf("%s: want a comment that names %q, have %.200s", name, tc.comment, out)
		}
	}
}

// Watchers of today's deployments, of an API server, and of Windows read as before. A field that is
// unknown, or that a document has twice, is refused by its name.
func TestFieldsOfAWatcher(t *testing.T) {
	bundle := caFile(t)
	exported := strings.Replace(watchers, "kind: Watcher\nmetadata:\n", "kind: Watcher\nstatus: {state: Ready, conditions: [{type: New}]}\n"+
		"metadata:\n  uid: \"1\"\n  managedFields: [{manager: kubectl, fieldsV1: {f:spec: {}}}]\n", 1)
	for name, tc := range map[string]struct{ text, unknown string }{
		"as they are":             {watchers, ""},
		"from an API server":      {exported, ""},
		"with CRLF":               {strings.ReplaceAll(watchers, "\n", "\r\n"), ""},
		"a byte order mark":       {"\ufeff" + watchers, ""},
		"comments between":        {strings.ReplaceAll(watchers, "---\n", "---\n# nothing\n---\n"), ""},
		"a misspelt selector":     {strings.Replace(watchers, "labelsToWatch", "labelsToWach", 1), "spec.labelsToWach"},
		"another case":            {strings.Replace(watchers, "labelsToWatch", "labelstoWatch", 1), "spec.labelstoWatch"},
		"a selector twice":        {strings.Replace(watchers, "  serviceInfo", "  labelsToWatch: {}\n  serviceInfo", 1), "labelsToWatch"},
		"in the list":             {strings.Replace(watchers, "    field: status", "    feild: status", 1), "items[0].spec.feild"},
		"the namespace":           {strings.Replace(watchers, "  namespace: kcp-system", "  namespaces: kcp-system", 1), "metadata.namespaces"},
		"indented one level less": {strings.Replace(watchers, "  labelsToWatch", "labelsToWatch", 1), ""},
	} {
		_, err := run(t, tc.text, "--ca-cert", bundle, "-f", "-")
		if name == "indented one level less" {
			if err == nil {
				t.Errorf("%s: want an error", name)
			}
			continue
		}
		if tc.unknown == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tc.unknown != "" && (err == nil || !strings.Contains(err.Error(), tc.unknown)) {
			t.Errorf("%s: %v, want %s", name, err, tc.unknown)
		}
	}

	for _, pattern := range []string{
		"../../../../deploy/example-informer/watchers.yaml", "../../../../test/controlplane/watchers/testdata/watchers/*.yaml",
		"../../../../examples/lifecyclemanager/config/*/*watcher*.yaml",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}

		for _, file := range files {
			text, err := os.ReadFile(testcache.Path(file))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := webhookconfig.ReadWatchers(bytes.NewReader(text)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
