package installation

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/today"
)

// The objects of a former agent stay until the API server calls the new one. Their webhook
// configuration goes first. Once they are gone, each reconcile costs two requests.
func aFormerAgentIsReplaced(t *testing.T, plane *apiserver.ControlPlane) {
	t.Helper()
	w := newWorld(t, plane, "former")
	w.opts.Replaces = installation.SKRWebhook(w.namespace)
	w.install() // It makes the namespace.
	for _, object := range append(today.Agent(w.namespace, "image", "kcp.example:443", nil), today.Rights(w.namespace)...) {
		if err := plane.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	w.since()
	w.install()
	if slices.ContainsFunc(w.since(), isDelete) {
		t.Fatal("a former object was removed before the new agent answers")
	}
	w.available(1)
	w.endpoint()
	if status := w.install(); status.State != installation.Ready {
		t.Fatalf("got %+v, want it ready", status)
	}
	writes := w.since()
	applied := slices.Index(writes, "apply ValidatingWebhookConfiguration ")
	removed := slices.IndexFunc(writes, isDelete)
	if applied < 0 || removed < applied || writes[removed] != "delete ValidatingWebhookConfiguration skr-webhook" {
		t.Errorf("want the former webhook configuration to go after the new one is there, have %v", writes)
	}
	for _, object := range installation.SKRWebhook(w.namespace) {
		if err := client.IgnoreNotFound(plane.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)); err != nil ||
			object.GetUID() != "" {
			t.Errorf("%s %s is left: %v", object.GetKind(), object.GetName(), err)
		}
	}
	w.install()
	if slices.ContainsFunc(w.since(), isDelete) {
		t.Error("objects that are gone are removed again")
	}
}

// isDelete leaves out the objects of the canary, which is turned off.
func isDelete(write string) bool {
	return strings.HasPrefix(write, "delete ") && !strings.HasSuffix(write, "-canary")
}
