// Package charts tests the Helm charts against the kustomize base and a real API server.
package charts

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/controlplane/config/crd"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/node"
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
	out, err := template(t, namespace, chart, values...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, out)
	}
	return out
}

func template(t *testing.T, namespace, chart string, values ...string) (string, error) {
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
// names, because kustomize and the charts order them differently. The text of WATCHERS is a list.
func objects(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	for part := range strings.SplitSeq("\n"+text, "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &object.Object); err != nil {
			t.Fatalf("%v: %s", err, part)
		}
		if len(object.Object) == 0 {
			continue
		}
		rig.IndexVariables(object.Object, func(variable map[string]any) {
			if variable["name"] != "WATCHERS" {
				return
			}
			var watchers map[string]any
			rig.NoError(t, yaml.Unmarshal([]byte(variable["value"].(string)), &watchers))
			if watchers["kind"] == "Watcher" {
				watchers = map[string]any{"kind": "WatcherList", "items": []any{watchers}}
			}
			variable["value"] = watchers
		})
		all[object.GetKind()+" "+object.GetName()] = object
	}
	return all
}

// TestChartHasTheNamesOfAnOperator compares the chart with the functions of the module controlplane.
func TestChartHasTheNamesOfAnOperator(t *testing.T) {
	for values, n := range map[string]names.Names{
		"":                              {},
		"names.group=fleet.example.com": {Group: "fleet.example.com"},
		"names.group=operator.acme.io,names.kind=FleetWatch":          {Group: "operator.acme.io", Kind: "FleetWatch"},
		"names.prefix=acme.io,names.webhookDomain=hooks.acme.io":      {Prefix: "acme.io", WebhookDomain: "hooks.acme.io"},
		"names.group=a.io,names.kind=Watch,names.plural=fleetwatches": {Group: "a.io", Kind: "Watch", Plural: "fleetwatches"},
	} {
		text := render(t, controlPlane, "crd.keep=false", values)
		have, n := objects(t, text), n.WithDefaults()
		definition := "CustomResourceDefinition " + n.Plural + "." + n.Group
		want := objects(t, string(rig.Must(crd.Watchers(n))))
		rig.Same(t, definition, want[definition], have[definition])

		resources := map[string]bool{}
		for _, rule := range have["ClusterRole runtime-watcher-controlplane"].Object["rules"].([]any) {
			if groups := rule.(map[string]any)["apiGroups"].([]any); slices.Contains(groups, any(n.Group)) {
				for _, resource := range rule.(map[string]any)["resources"].([]any) {
					resources[resource.(string)] = true
				}
			}
		}
		rig.Same(t, "resources of "+n.Group, map[string]bool{
			n.Plural: true, n.Plural + "/status": true, n.Plural + "/finalizers": true,
		}, resources)
		if n.Group != "operator.kyma-project.io" && strings.Contains(text, "kyma") {
			t.Errorf("with %s, the chart has a name of another project:\n%s", values, text)
		}
	}
}

// TestAgentChartHasTheNamesOfAnOperator finds no name of another project in the agent's objects.
func TestAgentChartHasTheNamesOfAnOperator(t *testing.T) {
	own := []string{"names.prefix=fleet.example.com", "rules.install=true", "rules.webhookDomain=fleet.example.com"}
	for name, values := range map[string][]string{
		"webhook":  append(exampleValues(), own...),
		"informer": append(informerValues(t), own...),
	} {
		text := render(t, agent, values...)
		if strings.Contains(text, "kyma") {
			t.Errorf("%s: a name of another project:\n%s", name, text)
		}
		rig.Says(t, name, text, "fleet.example.com/installed-by: helm", "OWNER_ANNOTATION, value: fleet.example.com/owned-by")
	}
}

// TestRulesHaveTheDomainOfTheWebhooks checks the alert about webhooks that an API server cannot call.
func TestRulesHaveTheDomainOfTheWebhooks(t *testing.T) {
	const metric = "apiserver_admission_webhook_fail_open_count{name=~\".*[.](operator|scale)[.]"
	for value, want := range map[string]string{
		"rules.webhookDomain=": "kyma-project[.]io", "rules.webhookDomain=fleet.example.com": "fleet[.]example[.]com",
	} {
		text := render(t, agent, append(exampleValues(), "rules.install=true", value)...)
		if n := strings.Count(text, metric); n == 0 || n != strings.Count(text, metric+want+"\"}") {
			t.Errorf("%s: %d rules about webhooks, want each to be of %s", value, n, want)
		}
	}
}

// TestChartsAreThatOfKustomize compares the objects of the charts with those of kustomize.
func TestChartsAreThatOfKustomize(t *testing.T) {
	for _, row := range []struct {
		folder, chart string
		least         int // objects to compare
	}{
		{"deploy/example", render(t, agent, exampleValues()...), 9},
		{"deploy/example-informer", render(t, agent, informerValues(t)...), 8},
		{"deploy/controlplane", render(t, controlPlane, "crd.keep=false", "rules.install=true"), 2},
	} {
		base := objects(t, rig.Kubectl(t, "kustomize", row.folder))
		have := objects(t, row.chart)
		if row.folder == "deploy/controlplane" {
			maps.Copy(base, objects(t, copies(t)[controlPlane+"/files/rules.yaml"]))
		}
		delete(base, "Namespace "+namespace) // A release is stored in its namespace, so that a chart cannot create it.
		if row.folder != "deploy/controlplane" {
			marks(t, base, "manifests")
			marks(t, have, "helm")
		}
		rig.Same(t, "objects of "+row.folder, base, have)
		if len(base) < row.least {
			t.Errorf("only %d objects of %s to compare", len(base), row.folder)
		}
	}
}

// A policy applies to the port of the DNS pods: 8053 in Gardener, 5353 in OpenShift.
func TestThePolicyOpensDNSOfEachPlatform(t *testing.T) {
	t.Parallel()
	policy := string(test.Read(t, "controlplane/config/agent/networkpolicy.yaml"))
	chart := render(t, agent, exampleValues()...)
	for _, port := range []string{"53", "8053", "5353"} {
		for _, protocol := range []string{"UDP", "TCP"} {
			rule := "{protocol: " + protocol + ", port: " + port + "}"
			if !strings.Contains(policy, rule) || !strings.Contains(chart, rule) {
				t.Errorf("the manifest or the chart does not open %s", rule)
			}
		}
	}
}

// marks wants the mark of an owner on each object, and removes it. An installer of a control plane neither takes nor
// removes objects of another owner.
func marks(t *testing.T, objects map[string]*unstructured.Unstructured, owner string) {
	t.Helper()
	const mark = "operator.kyma-project.io/installed-by"
	for name, object := range objects {
		annotations := object.GetAnnotations()
		rig.Same(t, "owner of "+name, owner, annotations[mark])
		delete(annotations, mark)
		object.SetAnnotations(annotations)
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

func TestFilesAreCopies(t *testing.T) {
	for path, text := range copies(t) {
		if *update {
			rig.NoError(t, os.WriteFile(filepath.Join(test.Root(), path), []byte(text), 0o644))
		} else if string(test.Read(t, path)) != text {
			t.Errorf("%s is out of date: go test ./test/controlplane/charts -update copies it", path)
		}
	}
}

// TestMonitoringOfTheAgent: alerts on the agent name its runtime, and are not in the control plane.
func TestMonitoringOfTheAgent(t *testing.T) {
	chart := render(t, agent, append(exampleValues(), "podMonitor.install=true", "podMonitor.labels.release=mine",
		"rules.install=true", "rules.labels.release=mine", "rules.alertLabels.runtime=runtime-1")...)
	all := objects(t, chart)
	want := objects(t, string(test.Read(t, "deploy/observability/podmonitor.yaml")))["PodMonitor "+namespace].Object["spec"].(map[string]any)
	rig.Same[any](t, "PodMonitor", want, all["PodMonitor "+namespace].Object["spec"])
	service := objects(t, render(t, agent, append(exampleValues(), "serviceMonitor.install=true", "serviceMonitor.labels.release=mine")...))
	want["endpoints"] = want["podMetricsEndpoints"]
	delete(want, "podMetricsEndpoints")
	rig.Same[any](t, "ServiceMonitor", want, service["ServiceMonitor "+namespace].Object["spec"])
	rig.Same(t, "there is no PodMonitor beside it", true, service["PodMonitor "+namespace] == nil)
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
		rig.Says(t, value, out, want)
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
		"env.CONTROL_PLANE_CONTRACT=v2":             `{name: CONTROL_PLANE_CONTRACT, value: "v2"}`,
		"tls.secretName=other":                      "secretName: other",
		"replicas=3":                                "replicas: 3",
		"resources.limits.memory=96Mi":              "memory: 96Mi",
		"ports.webhook=10260":                       `{name: WEBHOOK_PORT, value: "10260"}`,
		"ports.metrics=9090":                        "- name: metrics\n              containerPort: 9090\n              protocol: TCP",
		"hostNetwork=true":                          "rollingUpdate: {maxSurge: 0, maxUnavailable: 1}",
		"podSecurityContext.fsGroup=10001":          "        fsGroup: 10001\n        runAsNonRoot: true",
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
	for address, port := range map[string]string{"[fd00::1]:9443": "9443", "[FD00::2]:443": "443", "kcp.example.com.:8443": "8443"} {
		out := shows(t, exampleValues(), map[string]string{
			"controlPlane.address=" + address: `{name: CONTROL_PLANE_ADDRESS, value: "` + address + `"}`,
		})
		rig.Says(t, address, out, "{protocol: TCP, port: "+port+"}")
	}
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
	rig.Same(t, "limits of a VerticalPodAutoscaler alone", false, strings.Contains(render(t, agent, append(exampleValues(), "resources=null")...), "limits:"))
	for _, fixed := range []string{"runAsUser", "runAsGroup", "fsGroup", "hostNetwork"} {
		rig.Same(t, "there is a "+fixed, false, strings.Contains(without, fixed+":"))
	}
	rig.Same(t, "the canary is off, and here", false, strings.Contains(without, "canary"))
	rule := objects(t, render(t, controlPlane, "rules.install=true", "rules.labels.release=mine"))["PrometheusRule runtime-watcher"]
	rig.Same(t, "labels of the values and of the chart", map[string]string{"release": "mine", "app.kubernetes.io/name": "runtime-watcher"}, rule.GetLabels())
	bound := objects(t, render(t, controlPlane, "serviceAccount.name=operator", "crd.install=false"))
	rig.Same(t, "there is a binding", true, bound["ClusterRoleBinding runtime-watcher-controlplane"] != nil)
	rig.Same(t, "role and binding", 2, len(bound))
}

// With --reuse-values, Helm gives the chart the values of the former one, which lack the newest ones.
func TestTheValuesOfTheFormerChartAreEnough(t *testing.T) {
	now := render(t, agent, exampleValues()...)
	former := render(t, agent, append(exampleValues(), "ports=null", "hostNetwork=null", "podSecurityContext=null")...)
	rig.Same(t, "objects with the values of the former chart", objects(t, now), objects(t, former))
}

// joiningValues are those of a runtime that joins by itself.
func joiningValues() []string {
	return append(exampleValues(), "managers=null", `webhooks.watchers=[{"metadata":{"name":"a","namespace":"kcp-system"},"spec":`+
		`{"manager":"a","resourceToWatch":{"group":"apps","version":"v1","resource":"deployments"},"labelsToWatch":{"a":"$b"}}}]`)
}

// A runtime that joins by itself has its webhooks and its keys from the chart.
func TestValuesOfARuntimeThatJoins(t *testing.T) {
	shows(t, joiningValues(), map[string]string{
		"webhooks.excludedNamespaces={a,b}":           `{name: EXCLUDED_NAMESPACES, value: "a,b"}`,
		"canary.configuration=mine":                   `resourceNames: ["mine"]`,
		"names.webhookDomain=example.com":             `{name: WEBHOOK_DOMAIN, value: "example.com"}`,
		"names.prefix=fleet.example.com":              "WEBHOOK_ENDPOINT, value: runtime-watcher/runtime-watcher",
		"tls.issuerRef.name=vault":                    "  issuerRef:\n    group: cert-manager.io\n    kind: Issuer\n    name: vault",
		"tls.runtime=runtime-1":                       `commonName: "runtime-1"`,
		"tls.domain=runtime-1.example.com":            `dnsNames: ["runtime-1.example.com","runtime-watcher.runtime-watcher.svc"]`,
		"controlPlane.ca=-----BEGIN CERTIFICATE-----": "CA_CERT, value: /etc/runtime-watcher/control-plane/ca.crt",
	})
	shows(t, joiningValues(), map[string]string{
		"tls.issuerRef.name=vault":                     `usages: ["digital signature","client auth"]`,
		"tls.runtime=runtime-1":                        "verbs: [get, watch, create, patch, delete]",
		"tls.domain=r.example.com":                     `dnsNames: ["r.example.com"]`,
		"tls.serving.generate=true":                    "type: kubernetes.io/tls",
		"tls.duration=48h":                             "duration: 48h",
		"tls.serving.secretName=mine":                  "{name: WEBHOOK_CA_CERT, value: /etc/runtime-watcher/serving/ca.crt}",
		"env.OWNER_ANNOTATION=fleet.example.com/owner": `object.metadata.annotations["fleet.example.com/installed-by"] ==`,
		"webhooks.watchers[0].spec.field=status":       `["apps/deployments/status"]`,
	})
	without := render(t, agent, append(joiningValues(), "webhooks.policy=false")...)
	rig.Same(t, "there is a policy without one", false, strings.Contains(without, "ValidatingAdmissionPolicy"))
	with := objects(t, render(t, agent, joiningValues()...))
	rig.Same(t, "there is a policy", true, with["ValidatingAdmissionPolicy runtime-watcher-webhooks"] != nil)

	for _, mistake := range []string{
		"canary.enabled=false", "source=informer", "tls.issuerRef.name=vault", "webhooks.watchers[0].spec.matchConditions={a}",
		"env.WEBHOOK_ENDPOINT=a/b", "tls.duration=3d",
	} {
		if out, err := template(t, namespace, agent, append(joiningValues(), mistake)...); err == nil {
			t.Errorf("%s: rendered\n%.300s", mistake, out)
		}
	}
}

// A mistake ends with a message instead of an agent that does not start.
func TestSchemaRefusesMistakes(t *testing.T) {
	refused := func(values []string, mistakes ...string) {
		for _, mistake := range mistakes {
			if out, err := template(t, namespace, agent, append(slices.Clone(values), mistake)...); err == nil {
				t.Errorf("%s: rendered\n%.300s", mistake, out)
			}
		}
	}
	refused(exampleValues(),
		"controlPlane.address=fd00::1", "controlPlane.address=::1:8443", "controlPlane.address=[fd00::1]", "controlPlane.address=[kcp]:443",
		"controlPlane.address=localhost:1:2", "controlPlane.address=a b:443",
		"controlPlane.address=", "controlPlane.address=https://kcp.example.com", "controlPlane.host=kcp:443", "source=informer", "managers={Not-A-Label}",
		"image.digest=latest", "replicas=0", "canary=true", "ports.webhook=443", "ports.webhook=a", "ports.other=8080", "hostNetwork=1",
		"ports.webhook=2112", "ports.metrics=8443", "hostNetwork=true,ports.webhook=10250", "hostNetwork=true,ports.metrics=10250",
		"controlPlane.proxy=direct,controlPlane.proxyCredentials.secretName=proxy",
		"podSecurityContext.runAsNonRoot=false", "unknown=1", "env.TRANSPORT=NATS", "env.TRANSPORT=nats,env.CONTROL_PLANE_CONTRACT=v2",
		"env.TRANSPORT=nats,env.CONTRACT_FALLBACK=v2")
	refused(informerValues(t),
		"source=webhook", "informer.watchers[0].kind=Deployment", "informer.replicas=0",
		"informer.watchers[0].spec.resourceToWatch.version=null", "informer.watchers[0].spec.matchConditions={a}")
	out, err := template(t, namespace, agent)
	rig.Fails(t, "without values", err)
	rig.Says(t, "without values", out, "address")
}

// A variable of the chart would be there twice, and the API server keeps the last one.
func TestVariablesOfTheChartAreRefused(t *testing.T) {
	for _, values := range [][]string{exampleValues(), informerValues(t), joiningValues()} {
		deployment := objects(t, render(t, agent, values...))["Deployment runtime-watcher"]
		text := rig.Must(yaml.Marshal(deployment))
		_, list, _ := strings.Cut(string(text), "env:\n")
		variables := regexp.MustCompile(`(?m)^ +name: ([A-Z_]+)$`).FindAllStringSubmatch(list, -1)
		for _, name := range variables {
			values = append(values, "env."+name[1]+"=x")
		}
		out, err := template(t, namespace, agent, values...)
		rig.Fails(t, "variables of the chart", err)
		for _, name := range variables {
			rig.Says(t, "message", out, "invalid propertyName '"+name[1]+"'")
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

// TestServerAccepts applies both charts with strict validation to a real API server, also in a namespace of another name.
func TestServerAccepts(t *testing.T) {
	plane := rig.SharedAPIServer(t, apiserver.Options{})
	account := []string{"serviceAccount.name=operator"}
	for _, row := range []struct {
		namespace, chart string
		values           []string
	}{
		{namespace, agent, append(exampleValues(), "replicas=3", "env.CONTROL_PLANE_CONTRACT=v2", "priorityClassName=system-cluster-critical")},
		{namespace, agent, append(exampleValues(), "env.TRANSPORT=nats", "canary.enabled=false")},
		{namespace, agent, informerValues(t)},
		{namespace, controlPlane, account},
		{"another", agent, informerValues(t)},
		{"another", controlPlane, account},
	} {
		namespaced := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", row.namespace)
		apply(t, plane.Kubeconfig, row.namespace, namespaced)
		text, err := template(t, row.namespace, row.chart, row.values...)
		if err != nil || row.namespace != namespace && strings.Contains(text, "namespace: "+namespace+"\n") {
			t.Errorf("%s: %v, want objects in the namespace %s alone:\n%s", row.chart, err, row.namespace, text)
		}
		rig.Says(t, row.chart, text, "namespace: "+row.namespace+"\n")
		apply(t, plane.Kubeconfig, row.chart, text, "--force-conflicts")
	}
}

func apply(t *testing.T, kubeconfig, name, text string, flags ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	rig.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	args := []string{"--kubeconfig", kubeconfig, "apply", "--server-side", "--validate=strict", "-f", file}
	out := rig.Kubectl(t, append(args, flags...)...)
	rig.Same(t, name+": objects applied", len(objects(t, text)), strings.Count(out, "serverside-applied"))
}

// rollOut rolls the Deployments of a namespace out, as a controller and a node would, until the test
// ends. Commands of helm with --wait need that.
func rollOut(t *testing.T, plane *apiserver.ControlPlane, namespace string) {
	t.Helper()
	rig.Run(t, "Deployments", func(ctx context.Context) error {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			var all appsv1.DeploymentList
			if plane.Client.List(ctx, &all, client.InNamespace(namespace)) != nil {
				return // The next round lists again.
			}
			for i := range all.Items {
				deployment := &all.Items[i]
				if deployment.Status.ObservedGeneration == deployment.Generation {
					continue
				}
				replicas := *deployment.Spec.Replicas
				deployment.Status = node.StatusOf(deployment, replicas, replicas, replicas)
				_ = plane.Client.Status().Update(ctx, deployment) // The next round repeats it.
			}
		}, 100*time.Millisecond)
		return nil
	})
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
	// Other tests have applied the chart to this API server, without Helm.
	rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "delete", "clusterrole,clusterrolebinding", "runtime-watcher-webhooks",
		"--ignore-not-found")
	install := []string{"install", "agent", agent, "--namespace", "elsewhere", "--create-namespace", "--set", strings.Join(values, ",")}
	run(append(install, "--dry-run=server")...)
	out := run(install...)
	rollOut(t, plane, "elsewhere")
	rig.Says(t, "notes", out, "--service elsewhere/runtime-watcher --canary elsewhere/runtime-watcher-canary |")
	found := func() string {
		return rig.Kubectl(t, "--kubeconfig", plane.Kubeconfig, "get", "deployments,services,leases", "-n", "elsewhere", "-o", "name")
	}
	rig.Same(t, "Deployment, Service and Lease", 3, strings.Count(found(), "runtime-watcher"))
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
