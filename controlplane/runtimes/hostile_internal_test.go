package runtimes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote/remotetest"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// valid has the material that the installer accepts.
type valid struct {
	ready

	secret map[string][]byte
}

func newValid(t *testing.T) valid {
	t.Helper()

	ca, err := testpki.NewCA("ca", testpki.Options{})
	check(t, err)
	leaf, err := ca.Server(string(prod), testpki.Options{DNSNames: []string{"runtime-watcher.runtime-watcher.svc"}})
	check(t, err)

	return valid{secret: testpki.Files(leaf, ca)}
}

func (v valid) EnsureRuntime(context.Context, certificates.Runtime) (certificates.RuntimeStatus, error) {
	return certificates.RuntimeStatus{Ready: true, Secret: v.secret}, nil
}

// hostileWorld is the operator of a hostile runtime.
type hostileWorld struct {
	*reconciler

	t      *testing.T
	logged bytes.Buffer
	object client.Object
	evict  func() // the client of the runtime
}

func newHostileWorld(t *testing.T, server *remotetest.Server) *hostileWorld {
	t.Helper()

	object := newObject(string(prod))
	other := newObject("other")
	secret := &corev1.Secret{ObjectMeta: object.ObjectMeta, Data: map[string][]byte{"config": server.Kubeconfig()}}
	secret.UID = "secret"
	plane := newPlane(t, object, secret)
	connect := NewKubeconfigs(plane, "config", func(client.Object) client.ObjectKey { return client.ObjectKeyFromObject(secret) },
		KubeconfigOptions{Clients: 1})
	elsewhere := secret.DeepCopy()
	elsewhere.Name = other.Name
	elsewhere.ResourceVersion = ""
	w := &hostileWorld{reconciler: newReconciler(t, plane, connect), t: t, object: object, evict: func() {
		secret = elsewhere
		check(t, plane.Create(t.Context(), elsewhere))
		_, err := connect(t.Context(), other)
		check(t, err)
	}}

	w.certificates, w.opts.Fleet = newValid(t), newTestFleet(t).Fleet
	var err error
	w.installer, err = installation.New(installation.Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, installation.Options{
		Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
	})
	check(t, err)

	return w
}

func (w *hostileWorld) reconcileOnce() (result reconcile.Result, took remotetest.Cost, err error) {
	w.logged.Reset()
	took, err = remotetest.Measure(w.t.Context(), func(ctx context.Context) (err error) {
		result, err = w.lanes.Regular.Reconcile(ctx, requestOf(w.object))
		return err
	})

	took.Log += w.logged.Len()
	return result, took, err
}

// An administrator of a runtime has a program in place of the API server. Rows with a part of an
// object are answered as a real API server does, except for that part.
func TestAHostileRuntimeCostsLittle(t *testing.T) {
	names := func(round int64, n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "m%d-%d ", round, i)
		}

		return text.String()
	}

	const mega = 1 << 20
	var round atomic.Int64

	// edits changes the honest answers about one kind.
	edits := func(resource string, edit func(object map[string]any)) remotetest.Spoil {
		return func(w http.ResponseWriter, request *http.Request, honest []byte) bool {
			var object map[string]any
			if !strings.Contains(request.URL.Path, resource) || json.Unmarshal(honest, &object) != nil ||
				object["kind"] == "Status" {
				return false
			}

			edit(object)
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(object)

			return true
		}
	}

	// puts changes one field of the honest answers about one kind.
	puts := func(resource string, value any, path ...string) remotetest.Spoil {
		last := len(path) - 1
		return edits(resource, func(object map[string]any) {
			for _, name := range path[:last] {
				object, _ = object[name].(map[string]any)
			}
			object[path[last]] = value
		})
	}

	// A list of this many objects is as large as the bound allows.
	many := slices.Repeat([]any{map[string]any{}}, 60_000)
	different := make([]any, 25_000)
	for n := range different {
		different[n] = map[string]any{"n": n}
	}

	const annotation = "operator.kyma-project.io/"
	tests := map[string]struct {
		hostile remotetest.Spoil
		ready   bool // all the same
	}{
		"immutable fields": {func(w http.ResponseWriter, request *http.Request, _ []byte) bool {
			refuse := remotetest.Repeat(http.StatusUnprocessableEntity,
				`{"kind":"Status","apiVersion":"v1","reason":"Invalid","code":422,"message":"field is immutable `,
				"a", `"}`, 16<<10)
			return request.Method == http.MethodPatch && refuse(w, request, nil)
		}, false},
		"managers in the ConfigMap": {edits("/configmaps/", func(object map[string]any) {
			object["data"] = map[string]any{"managers": names(round.Add(1), 100_000)}
		}), true},
		"managers in the webhooks": {edits("/validatingwebhookconfigurations/", func(object map[string]any) {
			var webhooks []any
			for n, name := range strings.Fields(names(round.Add(1), 1000)) {
				webhooks = append(webhooks, map[string]any{"name": fmt.Sprint("w", n), "clientConfig": map[string]any{
					"service": map[string]any{"namespace": "a", "name": "a", "path": "/validate/" + name},
				}})
			}

			object["webhooks"] = webhooks
		}), true},
		"webhooks that just fit":   {puts("/validatingwebhookconfigurations/", different, "webhooks"), false},
		"conditions that just fit": {puts("/deployments/", many[:30_000], "status", "conditions"), true}, // in two answers
		"fields that just fit":     {puts("/configmaps/", many[:25_000], "metadata", "managedFields"), true},
		"a ConfigMap of nobody that just fits": {edits("/configmaps/", func(object map[string]any) {
			meta, _ := object["metadata"].(map[string]any)
			delete(meta, "annotations")
			meta["managedFields"] = many[:25_000]
		}), false}, // This API server does not merge.
		"endpoints that just fit": {puts("/endpointslices", many, "items"), false},
		"an identity":             {puts("/deployments/", strings.Repeat("a", mega), "metadata", "uid"), true},
		"a restart": {
			puts("/configmaps/", strings.Repeat("a", mega), "metadata", "annotations", annotation+"managers-removed"), true,
		},
		"another owner": {edits("/configmaps/", func(object map[string]any) {
			meta, _ := object["metadata"].(map[string]any)
			meta["annotations"] = map[string]any{annotation + "installed-by": strings.Repeat("b", mega)}
			object["kind"] = strings.Repeat("c", mega)
		}), false},
		"a rollout": {puts("/deployments/", map[string]any{
			"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 0,
			"conditions": []any{map[string]any{"type": "Progressing", "status": "False", "message": strings.Repeat("a", mega)}},
		}, "status"), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := remotetest.NewServer(t)
			w := newHostileWorld(t, server)

			// Control: without the attack, the agent is installed.
			if result, _, err := w.reconcileOnce(); err != nil || result.Priority == nil {
				t.Fatalf("got %+v, %v, want a runtime that is ready", result, err)
			}

			kept := remotetest.Heap()
			server.SetSpoil(test.hostile)
			for range 3 {
				arrived := server.Arrived()
				w.book.objects[client.ObjectKeyFromObject(w.object)].verify = true // All objects are applied.
				result, took, err := w.reconcileOnce()
				t.Logf("%d answers: %d KiB, %v, %d bytes of log: %.250v",
					server.Arrived()-arrived, took.Memory>>10, took.Time, took.Log, err)

				if server.Arrived() == arrived {
					t.Error("no hostile answer has arrived")
				}
				if ready := err == nil && result.Priority != nil; ready != test.ready {
					t.Errorf("ready: %t, %v, want %t", ready, err, test.ready)
				}

				took.Check(t)
			}

			w.wantNothingKept(kept)
		})
	}
}

// The attacks on any program, for a reconcile that applies all objects.
func TestAttacksOnTheInstallation(t *testing.T) {
	remotetest.Run(t, func(t *testing.T, server *remotetest.Server) func(context.Context) error {
		t.Helper()

		w := newHostileWorld(t, server)
		return func(ctx context.Context) error {
			w.logged.Reset()
			w.book.withEntry(client.ObjectKeyFromObject(w.object), func(e *entry) { e.verify = true })
			_, err := w.lanes.Regular.Reconcile(ctx, requestOf(w.object))
			if w.logged.Len() > remotetest.MostLog {
				t.Errorf("%d kB of log", w.logged.Len()>>10)
			}

			return err
		}
	})
}

// wantNothingKept deletes the object.
func (w *hostileWorld) wantNothingKept(before uint64) {
	w.t.Helper()

	w.evict() // As for a client that others displace.
	remotetest.CheckKept(w.t, before)
	w.forgetObject(client.ObjectKeyFromObject(w.object))
	if n := len(w.book.objects) + len(w.book.runtimes) + len(w.book.stale); n > 0 {
		w.t.Errorf("%d entries are left of a runtime that is gone", n)
	}
}
