package installation_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

func TestNewNamesAllThatIsWrong(t *testing.T) {
	tests := map[string]struct {
		image, address string
		opts           installation.Options
		want           []string // none: nothing is wrong
	}{
		"nothing":            {"agent:v1", "control-plane.example.com:443", installation.Options{}, nil},
		"an address of IPv6": {"agent:v1", "[2001:db8::1]:443", installation.Options{}, nil},
		"settings":           {"agent:v1", "a:443", with("MANAGERS", "a,b", "https"), nil},
		"no image, no port":  {"", "control-plane.example.com", installation.Options{}, []string{"image", "<host>:<port>"}},
		"port 0":             {"agent:v1", "a:0", installation.Options{}, []string{"<host>:<port>"}},
		"port 65536":         {"agent:v1", "a:65536", installation.Options{}, []string{"<host>:<port>"}},
		"a URL":              {"agent:v1", "https://a:443", installation.Options{}, []string{"<host>:<port>"}},
		"no host":            {"agent:v1", ":443", installation.Options{}, []string{"<host>:<port>"}},
		"a namespace":        {"agent:v1", "a:443", installation.Options{Namespace: "a/b"}, []string{"Namespace"}},
		"a name":             {"agent:v1", "a:443", installation.Options{Name: `a"b`}, []string{"Name"}},
		"a configuration":    {"agent:v1", "a:443", installation.Options{ConfigurationName: "A"}, []string{"ConfigurationName"}},
		"replicas":           {"agent:v1", "a:443", installation.Options{Replicas: -1}, []string{"Replicas"}},
		"ports":              {"agent:v1", "a:443", installation.Options{WebhookPort: 10250, MetricsPort: 8443}, nil},
		"ports of nodes":     {"agent:v1", "a:443", installation.Options{WebhookPort: 10260, HostNetwork: true}, nil},
		"the port of the kubelet": {
			"agent:v1", "a:443",
			installation.Options{WebhookPort: 10250, HostNetwork: true},
			[]string{"HostNetwork: want ports that are free on each node, have 10250 of the kubelet"},
		},
		"credentials for no proxy": {
			"agent:v1", "a:443",
			installation.Options{Settings: map[string]string{"CONTROL_PLANE_PROXY": "direct", "CONTROL_PLANE_PROXY_CREDENTIALS": "/etc/proxy"}},
			[]string{"CONTROL_PLANE_PROXY_CREDENTIALS in Settings: want it only with a proxy"},
		},
		"a port of the superuser, and one twice": {
			"agent:v1", "a:443",
			installation.Options{WebhookPort: 443, MetricsPort: 443},
			[]string{"WebhookPort: want 1024 to 65535, have 443", "MetricsPort: want 1024", "two ports"},
		},
		"negative ports": {
			"agent:v1", "a:443", installation.Options{WebhookPort: -1, MetricsPort: 65536}, []string{"WebhookPort: want", "MetricsPort: want"},
		},
		"a path of the agent": {"agent:v1", "a:443", with("TLS_KEY", "/etc/key", "https"), []string{"Settings", "TLS_KEY"}},
		"the address twice":   {"agent:v1", "a:443", with("CONTROL_PLANE_ADDRESS", "b:443", "https"), []string{"CONTROL_PLANE_ADDRESS"}},
		"its former name":     {"agent:v1", "a:443", with("KCP_ADDR", "b:443", "https"), []string{"KCP_ADDR"}},
		"two names of the contract": {
			"agent:v1", "a:443",
			installation.Options{Settings: map[string]string{"KCP_CONTRACT": "v2", "CONTROL_PLANE_CONTRACT": "v3"}},
			[]string{`CONTROL_PLANE_CONTRACT is "v3" and KCP_CONTRACT is "v2"`},
		},
		"NATS with contract v2 by its former name": {
			"agent:v1", "nats:4222", with("KCP_CONTRACT", "v2", "nats"), []string{"want v3 with TRANSPORT=nats"},
		},
		"names of Kubernetes": {
			"agent:v1", "a:443", installation.Options{Names: names.Names{Group: "fleet.k8s.io"}}, []string{"Names: Group: want a domain of your own"},
		},
		"the annotation of owners": {"agent:v1", "a:443", with("OWNER_ANNOTATION", "a/b", "https"), []string{"OWNER_ANNOTATION"}},
		"an object without name": {
			"agent:v1", "a:443", installation.Options{Replaces: []*unstructured.Unstructured{{}}}, []string{"Replaces[0]"},
		},
		"the objects of a former agent": {
			"agent:v1", "a:443", installation.Options{Replaces: installation.SKRWebhook("kyma-system")}, nil,
		},
		"the source as a setting": {"agent:v1", "a:443", with("SOURCE", "informer", "https"), []string{"Settings", "SOURCE"}},
		"NATS":                    {"agent:v1", "nats:4222", with("CONTROL_PLANE_CONTRACT", "v3", "nats"), nil},
		"NATS with contract v2": {
			"agent:v1", "nats:4222", with("CONTROL_PLANE_CONTRACT", "v2", "nats"),
			[]string{`CONTROL_PLANE_CONTRACT in Settings: want v3 with TRANSPORT=nats, have "v2"`},
		},
		"NATS with a fallback": {"agent:v1", "nats:4222", with("CONTRACT_FALLBACK", "v2", "nats"), []string{"CONTRACT_FALLBACK"}},
		"no transport":         {"agent:v1", "a:443", with("SETTLE", "1s", "NATS"), []string{"want https or nats"}},
		"no setting":           {"agent:v1", "a:443", with("settle", "1s", "https"), []string{"settle"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			installer, err := installation.New(installation.Parts{Image: test.image, ControlPlane: test.address}, test.opts)
			if (err == nil) != (test.want == nil) || (installer == nil) != (err != nil) {
				t.Fatalf("got %v, want an error that names %v", err, test.want)
			}

			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to name %s", err, want)
				}
			}
		})
	}
}

// with returns the options with a setting, and another transport.
func with(setting, value, transport string) installation.Options {
	return installation.Options{Settings: map[string]string{"TRANSPORT": transport, setting: value}}
}

func TestManagersAreThoseThatTheAgentsSpeakTo(t *testing.T) {
	watches := []watch.Watch{{Manager: "b"}, {Manager: "a"}, {Manager: "b"}}
	// The managers of the watches are never replaced: the agents and the control plane must agree
	// on them.
	for settings, want := range map[string][]core.Manager{"": {"a", "b"}, "c, a": {"a", "b", "c"}} {
		installer, err := installation.New(installation.Parts{Image: "agent:v1", ControlPlane: "a:443"}, installation.Options{Settings: map[string]string{"MANAGERS": settings}})
		if err != nil {
			t.Fatal(err)
		}
		if have := installer.Managers(watches); !slices.Equal(have, want) {
			t.Errorf("with the setting %q: got %v, want %v", settings, have, want)
		}
	}
}
