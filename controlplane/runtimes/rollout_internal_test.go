package runtimes

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// versioned is an issuer with one version for all runtimes.
type versioned struct{ owned }

func (versioned) Follow(ctx context.Context, _ client.WithWatch, _ func(client.ObjectKey)) {
	<-ctx.Done()
}

func (versioned) Version(certificates.Runtime) string { return "1" }

// The agent has the newest certificates, but not the newest objects. The check and the installation
// share a connection, because each connection costs a read of the kubeconfig and a handshake.
func TestAChangedAgentIsInstalledThroughOneConnection(t *testing.T) {
	t.Parallel()

	object := newObject(string(prod))
	connections := 0
	r := newReconciler(t, newPlane(t, object), func(context.Context, client.Object) (client.Client, error) {
		connections++
		return fake.NewClientBuilder().Build(), nil
	})

	r.certificates = versioned{}
	key := client.ObjectKeyFromObject(object)
	r.book.addObject(key, prod)
	r.book.noteInstalled(key, "1")

	_ = reconcileOnce(t, r, object) // The runtime has no agent, so an installation follows the check.
	if connections != 1 {
		t.Errorf("%d connections, want 1", connections)
	}
}
