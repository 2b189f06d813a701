package runtimes_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controlplane/runtimes"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: runtime
contexts: [{name: runtime, context: {cluster: runtime, user: operator}}]
clusters: [{name: runtime, cluster: {server: "https://192.0.2.1"}}]
users: [{name: operator, user: {token: secret}}]
`

// secrets has one Secret, or none, or an error.
type secrets struct {
	client.Reader

	version, text string
	err           error
}

func (s *secrets) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if s.err != nil {
		return s.err
	}

	secret, _ := object.(*corev1.Secret)
	secret.ResourceVersion, secret.Data = s.version, map[string][]byte{"config": []byte(s.text)}

	return nil
}

func TestKubeconfigsKeepAClientUntilItsSecretChanges(t *testing.T) {
	stored := &secrets{version: "1", text: kubeconfig}
	kubeconfigs := runtimes.NewKubeconfigs(stored, "config", client.ObjectKeyFromObject, runtimes.KubeconfigOptions{})
	object := &corev1.ConfigMap{}
	connect := func() client.Client {
		c, err := kubeconfigs.Connect(t.Context(), object)
		if err != nil {
			t.Fatal(err)
		}

		return c
	}

	first := connect()
	if connect() != first {
		t.Error("each reconcile makes a client")
	}

	stored.version = "2"

	second := connect()
	if second == first {
		t.Error("a client of a kubeconfig that was replaced")
	}

	stored.err = apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "runtime")

	if c, err := kubeconfigs.Connect(t.Context(), object); !errors.Is(err, runtimes.ErrGone) || c != nil {
		t.Errorf("without Secret: got %v, %v", c, err)
	}

	stored.err = errors.New("the API server is away")

	if _, err := kubeconfigs.Connect(t.Context(), object); err == nil || errors.Is(err, runtimes.ErrGone) {
		t.Errorf("the API server is away: got %v", err)
	}

	stored.err = nil

	if connect() == second {
		t.Error("a client of a Secret that was gone")
	}
}

// A writer of the Secret of one runtime must not act as the operator.
func TestKubeconfigsAreSelfContained(t *testing.T) {
	tests := map[string]struct{ old, replaced, want string }{
		"a program": {
			"token: secret",
			"exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}", "program",
		},
		"a provider":          {"token: secret", "auth-provider: {name: oidc}", "program"},
		"a file with a token": {"token: secret", "tokenFile: /etc/passwd", "file"},
		"a file with a key":   {"token: secret", "client-key: /etc/key, client-certificate: /etc/certificate", "file"},
		"a file with a CA": {
			`server: "https://192.0.2.1"`,
			`server: "https://192.0.2.1", certificate-authority: /etc/ca`, "file",
		},
		"no verification": {
			`server: "https://192.0.2.1"`,
			`server: "https://192.0.2.1", insecure-skip-tls-verify: true`, "insecure-skip-tls-verify",
		},
		"plain text": {`"https://192.0.2.1"`, `"http://192.0.2.1"`, "https://"},
		"no scheme":  {`"https://192.0.2.1"`, `"192.0.2.1:6443"`, "https://"},
		"a proxy": {
			`server: "https://192.0.2.1"`,
			`server: "https://192.0.2.1", proxy-url: "http://192.0.2.2"`, "proxy-url",
		},
		"in a user not used":     {"users: [", "users: [{name: other, user: {tokenFile: /etc/passwd}}, ", "file"},
		"nothing":                {kubeconfig, "", "no configuration"},
		"no YAML":                {kubeconfig, "{", "Secret"},
		"a context that is none": {"current-context: runtime", "current-context: other", "other"},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(kubeconfig, test.old, test.replaced, 1)
			if text == kubeconfig {
				t.Fatal("the test changes nothing")
			}

			kubeconfigs := runtimes.NewKubeconfigs(&secrets{version: "1", text: text}, "config", client.ObjectKeyFromObject,
				runtimes.KubeconfigOptions{})

			_, err := kubeconfigs.Connect(t.Context(), &corev1.ConfigMap{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to name %q", err, test.want)
			}
		})
	}
}

func TestKubeconfigsMayBeInsecureOnRequest(t *testing.T) {
	insecure := strings.Replace(kubeconfig, `"https://192.0.2.1"`,
		`"http://192.0.2.1", insecure-skip-tls-verify: true, proxy-url: "http://192.0.2.2"`, 1)

	for opts, want := range map[runtimes.KubeconfigOptions]bool{
		{}: false, {AllowInsecure: true}: false, {AllowProxy: true}: false, {AllowInsecure: true, AllowProxy: true}: true,
	} {
		kubeconfigs := runtimes.NewKubeconfigs(&secrets{version: "1", text: insecure}, "config", client.ObjectKeyFromObject,
			opts)
		if _, err := kubeconfigs.Connect(t.Context(), &corev1.ConfigMap{}); (err == nil) != want {
			t.Errorf("%+v: %v, want it accepted: %t", opts, err, want)
		}
	}
}

func TestKubeconfigsLetGoOfClientsThatNobodyAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubeconfigs := runtimes.NewKubeconfigs(&secrets{version: "1", text: kubeconfig}, "config",
			client.ObjectKeyFromObject, runtimes.KubeconfigOptions{})
		connect := func(name string) client.Client {
			object := &corev1.ConfigMap{}
			object.SetName(name)

			c, err := kubeconfigs.Connect(t.Context(), object)
			if err != nil {
				t.Fatal(err)
			}

			return c
		}

		asked, removed := connect("asked"), connect("removed")

		for range 7 {
			time.Sleep(10 * time.Minute)

			if connect("asked") != asked {
				t.Fatal("each reconcile makes a client")
			}
		}

		connect("new")

		if connect("asked") != asked || connect("removed") == removed {
			t.Error("kept the wrong client")
		}
	})
}
