package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

const patience = 5 * time.Minute

// names are those of the clusters, of their Secrets and of the certificates of their agents.
var names = []string{"east", "north", "west"}

// world is a control plane, and clusters with their agents.
type world struct {
	t        *testing.T
	plane    *apiserver.ControlPlane
	clusters map[string]*apiserver.ControlPlane
	lines    *lines
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, plane: lab.SharedAPIServer(t, apiserver.Options{}), clusters: make(map[string]*apiserver.ControlPlane), lines: &lines{}}
	for _, name := range names {
		w.clusters[name] = apiserver.StartT(t, apiserver.Options{})
		w.write(name, "before", "0")
		w.register(name)
	}
	pki := lab.NewPKI(t)
	addr := lab.Address(lab.FreePort(t))
	w.operate(addr, pki)
	for _, name := range names {
		agent := lab.StartAgent(t, pki.RuntimeVolume(name, name+".example.com"), addr, lab.AgentOptions{
			Env: map[string]string{"CONTROL_PLANE_CONTRACT": "v3", "MANAGERS": "configmaps"},
		})
		lab.Watch(t, w.clusters[name], agent, pki.CA.PEM, watch.Watch{
			Name: types.NamespacedName{Namespace: "default", Name: "configmaps"}, Manager: "configmaps",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		})
	}
	return w
}

// register writes the Secret of a cluster.
func (w *world) register(name string) {
	w.t.Helper()
	kubeconfig, err := os.ReadFile(w.clusters[name].Kubeconfig)
	lab.NoError(w.t, err)
	lab.NoError(w.t, w.plane.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels:      map[string]string{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
			Annotations: map[string]string{controllerruntime.DomainAnnotation: name + ".example.com"},
		},
		Data: map[string][]byte{"kubeconfig": kubeconfig},
	}))
}

// operate runs the operator until the test ends.
func (w *world) operate(addr string, pki *lab.PKI) {
	w.t.Helper()
	leaf := lab.Must(pki.CA.Server("operator", testpki.Options{}))
	ca, cert, key := pki.Volume(leaf).Paths()
	out, in := io.Pipe()
	stop := lab.Run(w.t, "operator", func(ctx context.Context) error {
		defer in.Close()
		return run(ctx, w.plane.Config, addr, "default", keys.Paths{CA: ca, Certificate: cert, Key: key}, in)
	})
	go w.lines.read(out)
	w.t.Cleanup(func() { stop() })
}

// write writes a ConfigMap of a cluster.
func (w *world) write(cluster, name, text string) {
	w.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c := w.clusters[cluster].Client
	lab.NoError(w.t, client.IgnoreNotFound(c.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)))
	object.Data = map[string]string{"text": text}
	if object.UID == "" {
		lab.NoError(w.t, c.Create(w.t.Context(), object))
		return
	}
	lab.NoError(w.t, c.Update(w.t.Context(), object))
}

// await waits for a reconcile that has read this text.
func (w *world) await(cluster, name, text string) {
	w.t.Helper()
	line := strings.TrimSpace(fmt.Sprintf("cluster://%s/default/%s %s", cluster, name, text))
	lab.Eventually(w.t, patience, "a reconcile reports "+line, func() bool {
		return w.lines.count(func(have string) bool { return have == line }) > 0
	})
}

// lines are those that the operator prints.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) read(out io.Reader) {
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		l.mu.Lock()
		l.all = append(l.all, strings.TrimSpace(scanner.Text()))
		l.mu.Unlock()
	}
}

// count returns how many of the lines meet a condition.
func (l *lines) count(wanted func(line string) bool) (count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if wanted(line) {
			count++
		}
	}
	return count
}

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func TestOperatorOfThreeClusters(t *testing.T) {
	w := newWorld(t)
	for _, name := range names {
		w.await(name, "before", "0") // It was there before the operator.
		w.write(name, "changed-in-"+name, "1")
		w.await(name, "changed-in-"+name, "1")
		w.write(name, "changed-in-"+name, "2")
		w.await(name, "changed-in-"+name, "2")
	}
	lab.NoError(t, w.clusters["east"].Client.Delete(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "changed-in-east"},
	}))
	w.await("east", "changed-in-east", "")
	for _, name := range names {
		elsewhere := w.lines.count(func(line string) bool {
			return strings.Contains(line, "changed-in-"+name) && !strings.HasPrefix(line, "cluster://"+name+"/")
		})
		if elsewhere > 0 {
			t.Errorf("%d reconciles of an object of %s in other clusters, want none", elsewhere, name)
		}
	}
}
