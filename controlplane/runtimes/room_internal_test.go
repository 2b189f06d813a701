package runtimes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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

// Hostile runtimes answer with objects that just fit, and never answer the next request. Two honest
// ones are installed beside them, whatever the webhook configuration of the operator weighs.
func TestHostileRuntimesHoldNoRoom(t *testing.T) {
	heavy := make([]any, 25_000)
	for n := range heavy {
		heavy[n] = map[string]any{"n": n}
	}
	late := func(w http.ResponseWriter, request *http.Request, honest []byte) bool {
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
	ca, err := testpki.NewCA("ca", testpki.Options{})
	check(t, err)
	for _, hostile := range []int{0, 2, 6} { // Without hostile ones it is the control.
		for _, watchers := range []int{30, 40, 100} {
			t.Run(fmt.Sprintf("%d hostile, %d Watchers", hostile, watchers), func(t *testing.T) {
				objects := manyWatchers(watchers)
				var names []string
				for n := range hostile {
					names = append(names, fmt.Sprint("hostile-", n))
				}
				honest := []string{"honest-1", "honest-2"}
				arrived := make(chan *remotetest.Server, hostile)
				for _, name := range append(names, honest...) {
					server := remotetest.NewServer(t)
					if strings.HasPrefix(name, "hostile") {
						server.SetSpoil(late)
						arrived <- server
					}
					object := newObject(name)
					secret := &corev1.Secret{ObjectMeta: object.ObjectMeta, Data: map[string][]byte{"config": server.Kubeconfig()}}
					objects = append(objects, object, secret)
				}
				close(arrived)
				plane := newPlane(t, objects...)
				r := newReconciler(t, plane, NewKubeconfigs(plane, "config", client.ObjectKeyFromObject, KubeconfigOptions{}))
				issued := eachValid{secrets: make(map[core.RuntimeID]map[string][]byte)}
				for _, name := range append(names, honest...) {
					leaf, err := ca.Server(name, testpki.Options{DNSNames: []string{"runtime-watcher.runtime-watcher.svc"}})
					check(t, err)
					issued.secrets[core.RuntimeID(name)] = testpki.Files(leaf, ca)
				}
				r.certificates = issued
				var err error
				r.installer, err = installation.New(installation.Parts{Image: "image", ControlPlane: "control-plane.example.com:443"}, installation.Options{})
				check(t, err)
				has, err := r.contents(t.Context())
				check(t, err)
				if len(has.watches) != watchers {
					t.Fatalf("%d watches, want %d", len(has.watches), watchers)
				}
				t.Logf("the document of the watches has %d bytes", len(fmt.Sprint(watch.DocumentOf(has.watches))))

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
				for server := range arrived {
					deadline := time.Now().Add(20 * time.Second)
					for server.Arrived() < 2 && time.Now().Before(deadline) { // Its first answers came, and the next is late.
						<-time.After(time.Millisecond)
					}
					if server.Arrived() < 2 {
						t.Error("no attack")
					}
				}

				begun := time.Now()
				for range 3 { // The installation, a look at it, and a repair.
					for _, name := range honest {
						within, stop := context.WithTimeout(ctx, time.Minute)
						result, err := r.lanes.Regular.Reconcile(within, requestOf(newObject(name)))
						stop()
						if err != nil || result.Priority == nil {
							t.Errorf("%s: %+v, %v, want it ready", name, result, err)
						}
						r.book.edit(client.ObjectKeyFromObject(newObject(name)), func(e *entry) { e.verify = true })
					}
				}
				took := time.Since(begun)
				t.Logf("both were installed and repaired in %v", took)
				if took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}
