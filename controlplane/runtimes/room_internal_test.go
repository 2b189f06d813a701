package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/remote/remotetest"
	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// eachValid has the material of several runtimes.
type eachValid struct {
	ready

	secrets map[core.RuntimeID]map[string][]byte
}

func (v eachValid) EnsureRuntime(_ context.Context, r certificates.Runtime) (certificates.RuntimeStatus, error) {
	return certificates.RuntimeStatus{Ready: true, Secret: v.secrets[r.ID]}, nil
}

func manyWatchers(n int) (all []client.Object) {
	for i := range n {
		all = append(all, &v1beta2.Watcher{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: fmt.Sprint("watcher-", i)},
			Spec: v1beta2.WatcherSpec{
				Manager:         fmt.Sprint("manager-", i%10),
				ServiceInfo:     v1beta2.Service{Namespace: "kcp", Name: "operator", Port: 443},
				LabelsToWatch:   map[string]v1beta2.LabelValue{"watched-by": v1beta2.LabelValue(fmt.Sprint("operator-", i))},
				ResourceToWatch: v1beta2.WatchableGVR{Group: "apps", Version: "v1", Resource: "deployments"},
				Field:           "spec",
				Gateway:         v1beta2.GatewayConfig{LabelSelector: v1beta2.GatewaySelector{MatchLabels: map[string]v1beta2.LabelValue{"a": "b"}}},
			},
		})
	}
	return all
}

// lateServer answers with objects that just fit, and never answers the next request.
func lateServer() remotetest.Spoil {
	heavy := make([]any, 25_000)
	for n := range heavy {
		heavy[n] = map[string]any{"n": n}
	}

	return func(w http.ResponseWriter, request *http.Request, honest []byte) bool {
		if !strings.Contains(request.URL.Path, "webhookconfigurations") || request.Method != http.MethodGet {
			<-request.Context().Done()
			return true
		}

		object := map[string]any{"kind": "ValidatingWebhookConfiguration", "apiVersion": "admissionregistration.k8s.io/v1"}
		_ = json.Unmarshal(honest, &object)
		object["metadata"] = map[string]any{"name": "runtime-watcher", "managedFields": heavy}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)

		return true
	}
}

// honestRuntimes are in each room world.
func honestRuntimes() []string { return []string{"honest-1", "honest-2"} }

// newRoomWorld returns an operator with honest and hostile runtimes, and the servers of the hostile
// ones.
func newRoomWorld(t *testing.T, ca *testpki.CA, hostile []string, watchers int) (*reconciler, []*remotetest.Server) {
	t.Helper()

	objects := manyWatchers(watchers)
	issued := eachValid{secrets: make(map[core.RuntimeID]map[string][]byte)}
	var attackers []*remotetest.Server

	for _, name := range slices.Concat(hostile, honestRuntimes()) {
		server := remotetest.NewServer(t)
		if slices.Contains(hostile, name) {
			server.SetSpoil(lateServer())
			attackers = append(attackers, server)
		}

		object := newObject(name)
		secret := &corev1.Secret{ObjectMeta: object.ObjectMeta, Data: map[string][]byte{"config": server.Kubeconfig()}}
		objects = append(objects, object, secret)
		leaf, err := ca.Server(name, testpki.Options{DNSNames: []string{"runtime-watcher.runtime-watcher.svc"}})
		check(t, err)
		issued.secrets[core.RuntimeID(name)] = testpki.Files(leaf, ca)
	}

	plane := newPlane(t, objects...)
	r := newReconciler(t, plane, NewKubeconfigs(plane, "config", client.ObjectKeyFromObject, KubeconfigOptions{}))
	r.certificates = issued
	var err error
	r.installer, err = installation.New(installation.Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, installation.Options{})
	check(t, err)
	has, err := r.readContents(t.Context())
	check(t, err)

	if len(has.watches) != watchers {
		t.Fatalf("%d watches, want %d", len(has.watches), watchers)
	}

	t.Logf("the document of the watches has %d bytes", len(fmt.Sprint(watch.DocumentOf(has.watches))))
	return r, attackers
}

// applyAll makes an honest runtime ready, with all its objects, and returns the time that it took.
func (r *reconciler) applyAll(ctx context.Context, t *testing.T, name string) time.Duration {
	t.Helper()

	begun := time.Now()
	within, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	result, err := r.lanes.Regular.Reconcile(within, requestOf(newObject(name)))
	if err != nil || result.Priority == nil {
		t.Errorf("%s: %+v, %v, want it ready", name, result, err)
	}

	r.book.withEntry(client.ObjectKeyFromObject(newObject(name)), func(e *entry) { e.verify = true })
	return time.Since(begun)
}

// Hostile runtimes answer with objects that just fit, and never answer the next request. Two honest
// ones are installed beside them, whatever the webhook configuration of the operator weighs. The
// control is an operator without hostile runtimes. Both take turns, so that other work on the
// machine slows both.
func TestHostileRuntimesHoldNoRoom(t *testing.T) {
	// mostWait is the sum of all waits for room: two holders of the room are cancelled after 2 s.
	const most, mostWait = 3, 5 * time.Second
	ca, err := testpki.NewCA("ca", testpki.Options{})
	check(t, err)

	for _, hostile := range []int{2, 6} {
		for _, watchers := range []int{30, 40, 100} {
			t.Run(fmt.Sprintf("%d hostile, %d Watchers", hostile, watchers), func(t *testing.T) {
				var names []string
				for n := range hostile {
					names = append(names, fmt.Sprint("hostile-", n))
				}

				control, _ := newRoomWorld(t, ca, nil, watchers)
				r, attackers := newRoomWorld(t, ca, names, watchers)

				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				defer running.Wait()
				defer cancel()

				for _, name := range names {
					running.Go(func() {
						for ctx.Err() == nil {
							_, _ = r.lanes.Regular.Reconcile(ctx, requestOf(newObject(name)))
						}
					})
				}

				for _, server := range attackers {
					deadline := time.Now().Add(time.Minute)
					for server.Arrived() < 2 && time.Now().Before(deadline) { // Its first answers came, and the next is late.
						<-time.After(time.Millisecond)
					}

					if server.Arrived() < 2 {
						t.Error("no attack")
					}
				}

				var took, alone time.Duration
				for range 3 { // The installation, a look at it, and a repair.
					for _, name := range honestRuntimes() {
						alone += control.applyAll(ctx, t, name)
						took += r.applyAll(ctx, t, name)
					}
				}

				t.Logf("both were installed and repaired in %v, and without hostile runtimes in %v", took, alone)
				if took > most*alone+mostWait {
					t.Errorf("it took %v, and %v without hostile runtimes", took, alone)
				}
			})
		}
	}
}
