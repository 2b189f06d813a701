package states

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

// TestSlowWebhookInTheChain has a slow webhook beside ours. An API server calls all validating
// webhooks at once and commits when the slowest has answered, which may be after our event has
// settled. Two remedies avoid the stale result: the operator compares generations, or the agent
// sends each event once more.
func TestSlowWebhookInTheChain(t *testing.T) {
	runtime := rig.SharedAPIServer(t, controlplane.Options{})
	pki := rig.NewPKI(t)
	for i, test := range []struct {
		compare bool          // the operator compares generations, and requeues
		again   time.Duration // RESEND_AFTER of the agent
		stale   bool          // whether the operator ends with the object before the write
	}{
		{stale: true},
		{compare: true},
		{again: 2 * time.Second},
	} {
		t.Run(fmt.Sprintf("compare %v again %v", test.compare, test.again), func(t *testing.T) {
			c := &chain{
				subject: subject{name: fmt.Sprint("chain ", i)}, compare: test.compare, again: test.again,
				runtime: runtime,
			}
			c.start(t, pki)

			stale, looks := c.run(t)
			t.Logf("a webhook takes %v, generations compared %v, look again %v: %d of %d results are of the "+
				"object before the write, after %d looks",
				slow, test.compare, test.again, stale, writers, looks)
			if test.stale && stale < writers/2 {
				t.Errorf("%d of %d are stale, want most: else this test shows nothing", stale, writers)
			}

			if !test.stale && stale > 0 {
				t.Errorf("%d of %d are stale, want none", stale, writers)
			}
		})
	}
}

const (
	// writers write at once, each an object of its own.
	writers = 20
	// slow is how long the webhook beside ours takes: longer than the settle time.
	slow = time.Second
)

// chain is a runtime with a slow webhook beside ours, and an operator that notes the generation
// which it took as the newest.
type chain struct {
	subject

	compare bool
	again   time.Duration
	runtime *controlplane.ControlPlane

	mu        sync.Mutex
	announced map[string]int64 // generation, by object
	taken     map[string]int64
	delivers  map[string]int
	last      time.Time      // of the deliveries
	looked    map[string]int // how many deliveries the last look came after
	looks     int
}

func (c *chain) start(t *testing.T, pki *rig.PKI) {
	t.Helper()
	c.announced, c.taken = make(map[string]int64), make(map[string]int64)
	c.delivers, c.looked = make(map[string]int), make(map[string]int)
	c.plane = rig.StartPlane(t, pki, rig.PlaneOptions{Delivered: c.delivered, Reconcile: c.reconcile}, manager)
	c.agent = rig.StartAgent(t, pki.RuntimeVolume(c.label(), "chain.example.com"), c.plane.Addr,
		rig.AgentOptions{Env: map[string]string{
			"KCP_CONTRACT": "v3", "SETTLE": "100ms",
			"RESEND_AFTER": c.again.String(),
		}})

	watch := c.watch()
	watch.Resource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	// The reviews of ConfigMaps show that the configuration is in effect.
	probe := c.watch()
	probe.Name.Name += "-probe"
	rig.Register(t, c.runtime, c.label(), c.agent.WebhookPort, pki.CA.PEM(), admission.ConfigurationOptions{}, watch,
		probe)

	watch.Name.Name = "slow-" + c.label()
	rig.Register(t, c.runtime, "slow-"+c.label(), slowWebhook(t, pki), pki.CA.PEM(),
		admission.ConfigurationOptions{Timeout: 10 * time.Second}, watch)

	rig.AwaitReviews(t, c.runtime, c.agent, c.labels())
}

// slowWebhook allows everything after a while.
func slowWebhook(t *testing.T, pki *rig.PKI) (port int) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}

		timer := time.NewTimer(slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}

		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(review) // The API server may have lost its patience.
	}))
	server.TLS = httpmtls.WebhookTLSConfig(pki.ServerMaterial(), nil)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})

	address, _ := server.Listener.Addr().(*net.TCPAddr)
	return address.Port
}

// delivered remembers what an operator that compares has to expect.
func (c *chain) delivered(d core.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := d.Event.Watched.Name
	c.delivers[name]++
	c.last = time.Now()
	c.announced[name] = max(c.announced[name], d.Event.Generation)
}

func (c *chain) reconcile(ctx context.Context, look rig.Look) (reconcile.Result, error) {
	if look.Object.Name == "" {
		return reconcile.Result{}, nil // Resync: nothing was written yet.
	}

	c.mu.Lock()
	delivers := c.delivers[look.Object.Name]
	c.mu.Unlock()

	var have appsv1.Deployment
	if err := client.IgnoreNotFound(c.runtime.Client.Get(ctx, look.Object, &have)); err != nil {
		return reconcile.Result{}, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	c.looked[look.Object.Name] = delivers
	if c.compare && have.Generation < c.announced[look.Object.Name] {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}

	c.taken[look.Object.Name] = have.Generation
	return reconcile.Result{}, nil
}

// run creates the objects, changes each once, and returns how many results are still those of
// before when nothing is to come any more.
func (c *chain) run(t *testing.T) (stale, looks int) {
	t.Helper()
	var all [writers]*appsv1.Deployment
	for i := range all {
		all[i] = c.deployment(fmt.Sprintf("%s-%d", c.label(), i))
	}

	c.writeAll(t, all[:], func(d *appsv1.Deployment) error { return c.runtime.Client.Create(t.Context(), d) })
	c.awaitQuiet(t)
	c.writeAll(t, all[:], func(d *appsv1.Deployment) error {
		d.Spec.Replicas = new(int32(2))
		return c.runtime.Client.Update(t.Context(), d)
	})
	c.awaitQuiet(t)

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range all {
		if c.taken[d.Name] < d.Generation {
			stale++
		}
	}
	return stale, c.looks
}

func (c *chain) writeAll(t *testing.T, all []*appsv1.Deployment, write func(*appsv1.Deployment) error) {
	t.Helper()
	var writing sync.WaitGroup
	for _, d := range all {
		writing.Go(func() {
			if err := write(d); err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		})
	}

	writing.Wait()
}

// awaitQuiet waits until every event was delivered, a second time if it is to be, and led to a look
// with which the operator is content.
func (c *chain) awaitQuiet(t *testing.T) {
	t.Helper()
	rig.Eventually(t, 30*time.Second, "every event led to a result", func() bool {
		if c.agent.Metric("runtime_watcher_agent_events_pending") != 0 {
			return false
		}

		c.mu.Lock()
		defer c.mu.Unlock()
		for name, generation := range c.announced {
			if name != "" && (c.looked[name] < c.delivers[name] || c.compare && c.taken[name] < generation) {
				return false
			}
		}
		return len(c.announced) >= writers && time.Since(c.last) > c.again
	})
}

func (c *chain) deployment(name string) *appsv1.Deployment {
	labels := c.labels()
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}
}
