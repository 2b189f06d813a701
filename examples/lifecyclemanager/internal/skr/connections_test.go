package skr_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/examples/lifecyclemanager/internal/skr"
)

const kubeconfig = `
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}]
users: [{name: u, user: {token: t}}]
`

// secrets has one Secret in each place, or none if version is empty.
type secrets struct {
	client.Reader

	version string
}

// Get implements [client.Reader].
func (s *secrets) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if s.version == "" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret, _ := object.(*corev1.Secret)
	secret.Namespace, secret.Name, secret.ResourceVersion = key.Namespace, key.Name, s.version
	secret.Data = map[string][]byte{skr.KubeconfigKey: []byte(kubeconfig)}
	return nil
}

func TestConnections(t *testing.T) {
	stored := &secrets{}
	connections := skr.NewConnections(stored, runtime.NewScheme())
	get := func(name string) *skr.Runtime {
		t.Helper()
		there, err := connections.Get(t.Context(), client.ObjectKey{Namespace: "kcp-system", Name: name})
		if errors.Is(err, runtimes.ErrGone) != (stored.version == "") {
			t.Fatalf("Secret of version %q: error %v", stored.version, err)
		}
		return there
	}
	get("runtime-1")

	stored.version = "1"
	first := get("runtime-1")
	if get("runtime-1") != first || get("runtime-2") == first {
		t.Error("want one connection for each runtime")
	}

	stored.version = "2"
	second := get("runtime-1")
	if second == first || second.Client == first.Client {
		t.Error("the connection is still that of the former kubeconfig")
	}

	stored.version = ""
	get("runtime-1")
	stored.version = "2"
	if get("runtime-1") == second {
		t.Error("a runtime that was gone is still prepared")
	}
}
