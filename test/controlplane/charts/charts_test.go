// Package charts tests the Helm charts against the kustomize base and a real API server.
package charts

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

var update = flag.Bool("update", false, "copy the files of the charts from their origin")

func TestMain(m *testing.M) { os.Exit(rig.RunTests(m)) }

const (
	agent        = "deploy/charts/runtime-watcher-agent"
	controlPlane = "deploy/charts/runtime-watcher-controlplane"
	rules        = "deploy/observability/prometheusrule.yaml"
	namespace    = "runtime-watcher"
)

// exampleValues returns the values that equal the settings of deploy/example.
func exampleValues() []string {
	return []string{
		"image.repository=agent.example.com/runtime-watcher-agent", "image.tag=v0.0.0",
		"controlPlane.address=control-plane.example.com:443", "managers={my-operator}",
	}
}

func render(t *testing.T, chart string, values ...string) string {
	t.Helper()
	out, err := template(t, chart, values...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	return out
}

func template(t *testing.T, chart string, values ...string) (string, error) {
	t.Helper()
	return templateIn(t, namespace, chart, values...)
}

func templateIn(t *testing.T, namespace, chart string, values ...string) (string, error) {
	t.Helper()
	args := []string{"template", "any-release", chart, "--namespace", namespace, "--kube-version", "1.36.0"}
	for _, value := range values {
		option := "--set"
		if strings.Contains(value, "=[{") {
			option = "--set-json"
		}
		args = append(args, option, value)
	}
	return rig.Helm(t, args...)
}

// informerValues set what deploy/example-informer sets.
func informerValues(t *testing.T) []string {
	t.Helper()
	watcher := rig.Must(yaml.YAMLToJSON(test.Read(t, "deploy/example-informer/watchers.yaml")))
	return append(exampleValues(), "managers=null", "source=informer", "informer.watchers=["+string(watcher)+"]")
}

// objects returns the objects of a text in YAML, by kind and name. The variables of containers are in the order of their
// names, because kustomize and the charts order them differently.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for part := range strings.SplitSeq("\n"+text, "\n---") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(part), &object); err != nil {
			t.Fatalf("%v: %s", err, part)
		}
		if len(object) == 0 {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		kind, _ := object["kind"].(string)
		name, _ := metadata["name"].(string)
		indexVariables(object)
		all[kind+" "+name] = object
	}
	return all
}

// indexVariables replaces each list of variables by a map.
func indexVariables(value any) {
	switch value := value.(type) {
	case map[string]any:
		if list, ok := value["env"].([]any); ok {
			byName := map[string]any{}
			for _, one := range list {
				variable, _ := one.(map[string]any)
				name, _ := variable["name"].(string)
				byName[name] = variable
			}
			value["env"] = byName
		}
		for _, inner := range value {
			indexVariables(inner)
		}
	case []any:
		for _, inner := range value {
			indexVariables(inner)
		}
	}
}

func TestAgentIsThatOfKustomize(t *testing.T) {
	chart := objects(t, render(t, agent, exampleValues()...))
	base := objects(t, rig.Kubectl(t, "kustomize", "deploy/example"))
	delete(base, "Namespace "+namespace) // A release is stored in its namespace, so that a chart cannot create it.
	if diff := cmp.Diff(base, chart); diff != "" {
		t.Errorf("objects (-kustomize +chart):\n%s", diff)
	}
	if len(base) < 9 {
		t.Errorf("only %d objects to compare", len(base))
	}
}

func TestInformerIsThatOfKustomize(t *testing.T) {
	chart := objects(t, render(t, agent, informerValues(t)...))
	base := objects(t, rig.Kubectl(t, "kustomize", "deploy/example-informer"))
	delete(base, "Namespace "+namespace)
	for _, all := range []map[string]any{chart, base} {
		parseWatchers(t, all)
	}
	if diff := cmp.Diff(base, chart); diff != "" {
		t.Errorf("objects (-kustomize +chart):\n%s", diff)
	}
	if len(base) < 8 {
		t.Errorf("only %d objects to compare", len(base))
	}
}

// parseWatchers replaces each text of WATCHERS by its list.
func parseWatchers(t *testing.T, value any) {
	t.Helper()
	inner, _ := value.(map[string]any)
	list, _ := value.([]any)
	for _, one := range list {
		parseWatchers(t, one)
	}
	for key, one := range inner {
		parseWatchers(t, one)
		variable, _ := one.(map[string]any)
		if key != "WATCHERS" || variable == nil {
			continue
		}
		var watchers map[string]any
		rig.NoError(t, yaml.Unmarshal([]byte(variable["value"].(string)), &watchers))
		if watchers["kind"] == "Watcher" {
			watchers = map[string]any{"kind": "WatcherList", "items": []any{watchers}}
		}
		inner[key] = watchers
	}
}

// copies returns the files of the charts that are copies. The alerts on the agent are in its chart.
func copies(t *testing.T) map[string]string {
	t.Helper()
	text := string(test.Read(t, rules))
	head, _, _ := strings.Cut(text, "    - name:")
	others, ofAgent, found := strings.Cut(text, "    - name: runtime-watcher-agent\n")
	if !found {
		t.Fatalf("%s has no group of the agent", rules)
	}
	return map[string]string{
		controlPlane + "/files/watchers.yaml": string(test.Read(t, "controlplane/config/crd/operator.kyma-project.io_watchers.yaml")),
		controlPlane + "/files/role.yaml":     string(test.Read(t, "deploy/controlplane/role.yaml")),
		controlPlane + "/files/rules.yaml":    others,
		agent + "/files/rules.yaml":           head + "    - name: runtime-watcher-agent\n" + ofAgent,
		agent + "/files/podmonitor.yaml":      string(test.Read(t, "deploy/observability/podmonitor.yaml")),
	}
}

func TestControlPlaneIsThatOfKustomize(t *testing.T) {
	base := objects(t, rig.Kubectl(t, "kustomize", "deploy/controlplane"))
	for path, text := range copies(t) {
		if *update {
			rig.NoError(t, os.WriteFile(filepath.Join(test.Root(), path), []byte(text), 0o644))
		} else if string(test.Read(t, path)) != text {
			t.Errorf("%s is out of date: go test ./test/controlplane/charts -update copies it", path)
		}
		if path == controlPlane+"/files/rules.yaml" {
			maps.Copy(base, objects(t, text))
		}
	}
	chart := objects(t, render(t, controlPlane, "crd.keep=false", "rules.install=true"))
	if diff := cmp.Diff(base, chart); diff != "" {
		t.Errorf("objects (-kustomize +chart):\n%s", diff)
	}
}

// TestMonitoringOfTheAgent: alerts on the agent name its runtime, and are not in the control plane.
func TestMonitoringOfTheAgent(t *testing.T) {
	chart := render(t, agent, append(exampleValues(), "podMonitor.install=true", "podMonitor.labels.release=mine",
		"rules.install=true", "rules.labels.release=mine", "rules.alertLabels.runtime=runtime-1")...)
	all := objects(t, chart)
	monitored := objects(t, string(test.Read(t, "deploy/observability/podmonitor.yaml")))["PodMonitor "+namespace].(map[string]any)
	monitor, _ := all["PodMonitor "+namespace].(map[string]any)
	if diff := cmp.Diff(monitored["spec"], monitor["spec"]); diff != "" {
		t.Errorf("PodMonitor (-deploy/observability +chart):\n%s", diff)
	}
	service := objects(t, render(t, agent, append(exampleValues(), "serviceMonitor.install=true", "serviceMonitor.labels.release=mine")...))
	monitor, _ = service["ServiceMonitor "+namespace].(map[string]any)
	want, _ := monitored["spec"].(map[string]any)
	want["endpoints"] = want["podMetricsEndpoints"]
	delete(want, "podMetricsEndpoints")
	if diff := cmp.Diff(want, monitor["spec"]); diff != "" || service["PodMonitor "+namespace] != nil {
		t.Errorf("ServiceMonitor (-deploy/observability +chart):\n%s", diff)
	}
	alerts := strings.Count(string(test.Read(t, agent+"/files/rules.yaml")), "alert: RuntimeWatcher")
	if named := strings.Count(chart, "runtime: runtime-1"); named != alerts || alerts < 15 {
		t.Errorf("%d of %d alerts have the label of the runtime", named, alerts)
	}
	if selected := strings.Count(chart, "release: mine"); selected != 2 || all["PrometheusRule runtime-watcher-agent"] == nil {
		t.Errorf("%d objects have the label that selects them, want both:\n%s", selected, chart)
	}
	if out := render(t, controlPlane, "rules.install=true", "rules.groups={listener}"); strings.Contains(out, "AgentDown") ||
		strings.Contains(out, "FleetStale") || !strings.Contains(out, "ListenerErrors") {
		t.Errorf("want the alerts on the listener alone:\n%.2000s", out)
	}
}

// shows renders the chart of the agent once with all values, and wants the effect of each.
func shows(t *testing.T, others []string, effects map[string]string) (out string) {
	t.Helper()
	out = render(t, agent, slices.Concat(others, slices.Collect(maps.Keys(effects)))...)
	for value, want := range effects {
		if !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", value, want, out)
		}
	}
	return out
}

// Each value has an effect, and no object has more than it should.
func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	shows(t, exampleValues(), map[string]string{
		"image.digest=" + digest:                    "image: agent.example.com/runtime-watcher-agent@" + digest,
		"image.pullSecrets={mine}":                  "- name: mine",
		"controlPlane.address=kcp.example.com:8443": "{protocol: TCP, port: 8443}",
		"managers={a,b}":                            `{name: MANAGERS, value: "a,b"}`,
		"env.KCP_CONTRACT=v2":                       `{name: KCP_CONTRACT, value: "v2"}`,
		"tls.secretName=other":                      "secretName: other",
		"replicas=3":                                "replicas: 3",
		"resources.limits.memory=96Mi":              "memory: 96Mi",
		"nodeSelector.disk=ssd":                     "disk: ssd",
		"tolerations[0].key=infra":                  "- key: infra",
		"affinity.nodeAffinity.a=b":                 "affinity:\n        nodeAffinity:\n          a: b",
		"labels.team=blue":                          "        sidecar.istio.io/inject: \"false\"\n        team: blue",
		"annotations.cost=low":                      "      annotations:\n        cost: low",
		"volumes[0].name=cas":                       "        - name: cas",
		"volumeMounts[0].mountPath=/cas":            "            - mountPath: /cas",
		"priorityClassName=system-cluster-critical": "priorityClassName: system-cluster-critical",
		"canary.ports={16443}":                      "{protocol: TCP, port: 16443}",
	})
	without := shows(t, exampleValues(), map[string]string{
		"image.tag=":           "image: agent.example.com/runtime-watcher-agent:v0.0.0",
		"canary.enabled=false": "automountServiceAccountToken: false\n      enableServiceLinks",
	})
	shows(t, informerValues(t), map[string]string{
		"informer.excludedNamespaces={a,b}":                               `value: "a,b"`,
		"informer.ports={16443}":                                          "{protocol: TCP, port: 16443}",
		"informer.replicas=2":                                             "replicas: 2",
		"informer.watchers[0].spec.namespaceSelector.matchLabels.a=$b":    "resources: [namespaces]",
		"informer.watchers[0].spec.namespaceSelector.matchLabels.c=b$(c)": "b$$(c)",
	})
	shows(t, informerValues(t), map[string]string{"informer.watchers[0].spec.resourceToWatch.resource=pods/scale": "rules: []"})
	if strings.Contains(without, "canary") {
		t.Errorf("the canary is off, and here:\n%s", without)
	}
	labelled := objects(t, render(t, controlPlane, "rules.install=true", "rules.labels.release=mine"))
	rule, _ := labelled["PrometheusRule runtime-watcher"].(map[string]any)
	metadata, _ := rule["metadata"].(map[string]any)
	if labels, _ := metadata["labels"].(map[string]any); labels["release"] != "mine" || labels["app.kubernetes.io/name"] == nil {
		t.Errorf("labels %v of the rules, want those of the chart and of the values", labels)
	}
	bound := objects(t, render(t, controlPlane, "serviceAccount.name=operator", "crd.install=false"))
	if bound["ClusterRoleBinding runtime-watcher-controlplane"] == nil || len(bound) != 2 {
		t.Errorf("objects %v, want role and binding", bound)
	}
}

// A mistake ends with a message instead of an agent that does not start.
func TestSchemaRefusesMistakes(t *testing.T) {
	for _, mistake := range []string{
		"controlPlane.address=", "controlPlane.address=https://kcp.example.com", "controlPlane.host=kcp:443", "source=informer", "managers={Not-A-Label}",
		"image.digest=latest", "replicas=0", "canary=true", "unknown=1", "env.TRANSPORT=NATS", "env.TRANSPORT=nats,env.KCP_CONTRACT=v2",
		"env.TRANSPORT=nats,env.CONTRACT_FALLBACK=v2",
	} {
		if out, err := template(t, agent, append(exampleValues(), mistake)...); err == nil {
			t.Errorf("%s: rendered\n%.300s", mistake, out)
		}
	}
	for _, mistake := range []string{
		"source=webhook", "informer.watchers[0].kind=Deployment", "informer.replicas=0",
		"informer.watchers[0].spec.resourceToWatch.version=null", "informer.watchers[0].spec.matchConditions={a}",
	} {
		if out, err := template(t, agent, append(informerValues(t), mistake)...); err == nil {
			t.Errorf("%s: rendered\n%.300s", mistake, out)
		}
	}
	if out, err := template(t, agent); err == nil || !strings.Contains(out, "address") {
		t.Errorf("without values: %v %s, want a message about controlPlane.address", err, out)
	}
}

// A variable of the chart would be there twice, and the API server keeps the last one.
func TestVariablesOfTheChartAreRefused(t *testing.T) {
	for _, values := range [][]string{exampleValues(), informerValues(t)} {
		deployment := objects(t, render(t, agent, values...))["Deployment runtime-watcher"]
		text := rig.Must(yaml.Marshal(deployment))
		_, list, _ := strings.Cut(string(text), "env:\n")
		names := regexp.MustCompile(`(?m)^ +name: ([A-Z_]+)$`).FindAllStringSubmatch(list, -1)
		for _, name := range names {
			values = append(values, "env."+name[1]+"=x")
		}
		out, err := template(t, agent, values...)
		for _, name := range names {
			if err == nil || !strings.Contains(out, "invalid propertyName '"+name[1]+"'") {
				t.Errorf("env.%s: %v, want a message with the name:\n%.3000s", name[1], err, out)
			}
		}
	}
}

func TestLint(t *testing.T) {
	for chart, values := range map[string]string{agent: strings.Join(exampleValues(), ","), controlPlane: "crd.keep=true"} {
		if out, err := rig.Helm(t, "lint", "--strict", chart, "--set", values); err != nil {
			t.Errorf("helm lint %s: %v\n%s", chart, err, out)
		}
	}
}

// TestServerAccepts applies both charts with strict validation to a real API server.
func TestServerAccepts(t *testing.T) {
	chart := render(t, agent, append(exampleValues(), "replicas=3", "env.KCP_CONTRACT=v2", "priorityClassName=system-cluster-critical")...)
	watches := render(t, agent, informerValues(t)...)
	definition := render(t, controlPlane, "serviceAccount.name=operator")
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "create", "namespace", namespace)
	nats := render(t, agent, append(exampleValues(), "env.TRANSPORT=nats", "canary.enabled=false")...)
	for name, text := range map[string]string{"agent": chart, "control plane": definition, "informer": watches, "NATS": nats} {
		apply(t, plane.Kubeconfig, name, text)
	}
}

func apply(t *testing.T, kubeconfig, name, text string, flags ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	rig.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	args := []string{"--kubeconfig", kubeconfig, "apply", "--server-side", "--validate=strict", "-f", file}
	out := rig.Kubectl(t, append(args, flags...)...)
	if n := strings.Count(out, "serverside-applied"); n != len(objects(t, text)) {
		t.Errorf("%s: %d objects applied, want %d: %s", name, n, len(objects(t, text)), out)
	}
}

// TestServerAcceptsElsewhere applies the other charts to a namespace of another name, as a dry run.
func TestServerAcceptsElsewhere(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "create", "namespace", "another")
	for name, values := range map[string][]string{controlPlane: {"serviceAccount.name=operator"}, agent: informerValues(t)} {
		text, err := templateIn(t, "another", name, values...)
		if err != nil || !strings.Contains(text, "namespace: another\n") || strings.Contains(text, "namespace: "+namespace+"\n") {
			t.Errorf("%s: %v, want objects in the namespace alone:\n%s", name, err, text)
		}
		apply(t, plane.Kubeconfig, name, text, "--dry-run=server")
	}
}

// TestInstallElsewhere installs the agent in a namespace of another name. The notes must name the
// Service there, or the API server calls nothing, in silence. The commands of helm.md upgrade, roll
// back and remove it.
func TestInstallElsewhere(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	run := func(args ...string) string {
		out, err := rig.Helm(t, append(args, "--kubeconfig", plane.Kubeconfig)...)
		if err != nil {
			t.Fatalf("helm %v: %v: %s", args, err, out)
		}
		return out
	}
	values := append(exampleValues(), "labels.team=blue", "annotations.cost=low", "volumes[0].name=cas", "volumes[0].emptyDir.medium=Memory",
		"volumeMounts[0].name=cas", "volumeMounts[0].mountPath=/cas", "tolerations[0].operator=Exists",
		"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone")
	install := []string{"install", "agent", agent, "--namespace", "elsewhere", "--create-namespace", "--set", strings.Join(values, ",")}
	run(append(install, "--dry-run=server")...)
	out := run(install...)
	if !strings.Contains(out, "--service elsewhere/runtime-watcher --canary elsewhere/runtime-watcher-canary |") {
		t.Errorf("the notes name another Service:\n%s", out)
	}
	found := func() string {
		return rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "get", "deployments,services,leases", "-n", "elsewhere", "-o", "name")
	}
	if strings.Count(found(), "runtime-watcher") != 3 {
		t.Errorf("objects %q, want Deployment, Service and Lease", found())
	}
	_, page, _ := strings.Cut(string(test.Read(t, "docs/reference/helm.md")), "### Upgrade, rollback, removal\n")
	commands := regexp.MustCompile(`(?m)^(helm|kubectl) (.+)$`).FindAllStringSubmatch(page, 4)
	for _, command := range commands {
		args := strings.Fields(strings.ReplaceAll(command[2], "--namespace "+namespace, "--namespace elsewhere"))
		if command[1] == "helm" {
			run(args...)
		} else {
			rig.Kubectl(t, append([]string{"--kubeconfig", plane.Kubeconfig}, args...)...)
		}
	}
	if left := found(); len(commands) != 4 || strings.Contains(left, namespace) {
		t.Errorf("%d commands left %q, want four and nothing", len(commands), left)
	}
}
