package runtimes

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// The bounds of one reconcile of a runtime with a hostile administrator. The API server of the test
// is in the same process, so its part counts, too.
const (
	mostMemory = 64 << 20
	mostTime   = 5 * time.Second
	mostLog    = 64 << 10
	mostKept   = 1 << 20
)

// hostile is an API server of a runtime. What spoil does not answer is as a real one answers it.
type hostile struct {
	spoil   func(w http.ResponseWriter, request *http.Request, honest []byte) bool
	stored  map[string][]byte
	gate    chan struct{} // one request at a time has the store
	arrived atomic.Int64  // answers that were spoiled
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	status, answer := h.honest(request)
	if h.spoil != nil {
		h.arrived.Add(1)
		if h.spoil(w, request, answer) {
			return
		}
		h.arrived.Add(-1)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

func (h *hostile) honest(request *http.Request) (status int, answer []byte) {
	body, _ := io.ReadAll(request.Body)
	path := request.URL.Path
	h.gate <- struct{}{}
	defer func() { <-h.gate }()
	switch request.Method {
	case http.MethodPost:
		var object map[string]any
		_ = json.Unmarshal(body, &object)
		meta, _ := object["metadata"].(map[string]any)
		path += fmt.Sprint("/", meta["name"])
		fallthrough
	case http.MethodPatch:
		h.stored[path] = completed(body)
	case http.MethodDelete:
		delete(h.stored, path)
		return http.StatusOK, []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	case http.MethodGet:
		if strings.HasSuffix(path, "/endpointslices") {
			return http.StatusOK, []byte(`{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1",
				"items":[{"endpoints":[{"addresses":["192.0.2.1"]}]}]}`)
		}
	}
	if stored := h.stored[path]; stored != nil {
		return http.StatusOK, stored
	}
	return http.StatusNotFound,
		[]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// completed adds what an API server and a controller add.
func completed(body []byte) []byte {
	var object map[string]any
	_ = json.Unmarshal(body, &object)
	meta, _ := object["metadata"].(map[string]any)
	meta["uid"], meta["resourceVersion"], meta["generation"] = "b8c7", "1", 1
	if object["kind"] == "Deployment" {
		object["status"] = map[string]any{
			"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
		}
	}
	answer, _ := json.Marshal(object)
	return answer
}

// answer writes a text that is repeated up to a size, between a beginning and an end.
func answer(w http.ResponseWriter, status int, begin, part, end string, size int) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	chunk := strings.Repeat(part, max(1, (32<<10)/len(part)))
	_, err := io.WriteString(w, begin)
	for sent := 0; sent < size && err == nil; sent += len(chunk) {
		_, err = io.WriteString(w, chunk)
	}
	_, _ = io.WriteString(w, end)
	return true
}

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

// kubeconfigOf returns a kubeconfig for a server of a test.
func kubeconfigOf(server *httptest.Server) []byte {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"a",
		"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"users":[{"name":"a","user":{"token":"t"}}],
		"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q}}]}`,
		server.URL, base64.StdEncoding.EncodeToString(ca))
}

// hostileWorld is the operator of a hostile runtime.
type hostileWorld struct {
	*reconciler

	t           *testing.T
	logged      bytes.Buffer
	object      client.Object
	connections *kubeconfigs
}

func newHostileWorld(t *testing.T, handler http.Handler) *hostileWorld {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	object := newObject(string(prod))
	secret := &corev1.Secret{ObjectMeta: object.ObjectMeta, Data: map[string][]byte{"config": kubeconfigOf(server)}}
	plane := newPlane(t, object, secret)
	find := func(context.Context, client.Object) (*corev1.Secret, string, error) { return secret, "", nil }
	connections := newKubeconfigs("config", KubeconfigOptions{}, find)
	w := &hostileWorld{
		reconciler: newReconciler(t, plane, connections.connect), t: t, object: object, connections: connections,
	}
	w.certificates, w.opts.Fleet = newValid(t), newTestFleet(t).Fleet
	var err error
	w.installer, err = installation.New("image", "control-plane.example.com:443", installation.Options{
		Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
	})
	check(t, err)
	return w
}

// cost is what one reconcile took.
type cost struct {
	memory uint64
	time   time.Duration
	log    int
}

func (w *hostileWorld) reconcileOnce() (result reconcile.Result, took cost, err error) {
	w.logged.Reset()
	logger := logr.FromSlogHandler(slog.NewTextHandler(&w.logged, nil))
	ctx := logf.IntoContext(w.t.Context(), logger)
	before, peak, begun := heap(), make(chan uint64), processorTime()
	stop := make(chan struct{})
	go func() { peak <- peakUntil(stop) }()
	result, err = w.Reconcile(ctx, requestOf(w.object))
	if err != nil {
		logger.Error(err, "Reconciler error") // As the controller does.
	}
	close(stop)
	took = cost{memory: max(<-peak, before) - before, time: processorTime() - begun, log: w.logged.Len()}
	return result, took, err
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // Pools are emptied by the second one.
	return heapNow()
}

func heapNow() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func peakUntil(stop <-chan struct{}) (peak uint64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return peak
		case <-tick.C:
			peak = max(peak, heapNow())
		}
	}
}

// processorTime is a tenth with the race detector, which takes five to ten times as much.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	took := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		took /= 10
	}
	return took
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
	everything := func(status int, begin, part, end string, size int) func(*hostile) {
		return func(h *hostile) {
			h.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				return answer(w, status, begin, part, end, size)
			}
		}
	}
	// edits changes the honest answers about one kind.
	edits := func(resource string, edit func(h *hostile, object map[string]any)) func(*hostile) {
		return func(h *hostile) {
			h.spoil = func(w http.ResponseWriter, request *http.Request, honest []byte) bool {
				var object map[string]any
				if !strings.Contains(request.URL.Path, resource) || json.Unmarshal(honest, &object) != nil ||
					object["kind"] == "Status" {
					return false
				}
				edit(h, object)
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(object)
				return true
			}
		}
	}
	// puts changes one field of the honest answers about one kind.
	puts := func(resource string, value any, path ...string) func(*hostile) {
		last := len(path) - 1
		return edits(resource, func(_ *hostile, object map[string]any) {
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
		hostile func(*hostile)
		ready   bool // all the same
	}{
		"a list of empty objects": {everything(http.StatusOK, `{"x":[{}`, `,{}`, `]}`, 8*mega), false},
		"a list of items":         {everything(http.StatusOK, `{"kind":"List","items":[{}`, `,{}`, `]}`, 8*mega), false},
		"a list of fields":        {everything(http.StatusOK, `{"x":[{"a":0}`, `,{"a":0}`, `]}`, 8*mega), false},
		"nested lists":            {everything(http.StatusOK, `{"x":[0`, `,[[[[0]]]]`, `]}`, 8*mega), false},
		"nested objects":          {everything(http.StatusOK, `{"x":[0`, `,{"a":{"a":{"a":0}}}`, `]}`, 8*mega), false},
		"a large text":            {everything(http.StatusOK, `{"x":"`, "a", `"}`, 8*mega), false},
		"invalid characters":      {everything(http.StatusOK, `{"x":"`, "\xff", `"}`, 8*mega), false},
		"an open end":             {everything(http.StatusOK, `{"x":"`, "a", "", 64*mega), false},
		"an error text":           {everything(http.StatusInternalServerError, ``, "a", "", 8*mega), false},
		"a status": {everything(http.StatusForbidden,
			`{"kind":"Status","apiVersion":"v1","reason":"Forbidden","code":403,"message":"`, "a", `"}`, 8*mega), false},
		"immutable fields": {func(h *hostile) {
			h.spoil = func(w http.ResponseWriter, request *http.Request, _ []byte) bool {
				return request.Method == http.MethodPatch && answer(w, http.StatusUnprocessableEntity,
					`{"kind":"Status","apiVersion":"v1","reason":"Invalid","code":422,"message":"field is immutable `,
					"a", `"}`, 16<<10)
			}
		}, false},
		"headers": {func(h *hostile) {
			h.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				for i := range 1000 {
					w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("a", 1000))
				}
				return answer(w, http.StatusOK, "{", " ", "}", 1)
			}
		}, false},
		"an alias of YAML": {func(h *hostile) {
			h.spoil = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.Header().Set("Content-Type", "application/yaml")
				_, _ = io.WriteString(w, "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n")
				return true
			}
		}, false},
		"managers in the ConfigMap": {edits("/configmaps/", func(h *hostile, object map[string]any) {
			object["data"] = map[string]any{"managers": names(h.arrived.Load(), 100_000)}
		}), true},
		"managers in the webhooks": {edits("/validatingwebhookconfigurations/", func(h *hostile, object map[string]any) {
			var webhooks []any
			for n, name := range strings.Fields(names(h.arrived.Load(), 1000)) {
				webhooks = append(webhooks, map[string]any{"name": fmt.Sprint("w", n), "clientConfig": map[string]any{
					"service": map[string]any{"namespace": "a", "name": "a", "path": "/validate/" + name},
				}})
			}
			object["webhooks"] = webhooks
		}), true},
		"webhooks that just fit":   {puts("/validatingwebhookconfigurations/", different, "webhooks"), false},
		"conditions that just fit": {puts("/deployments/", many[:30_000], "status", "conditions"), true}, // in two answers
		"fields that just fit":     {puts("/configmaps/", many[:25_000], "metadata", "managedFields"), true},
		"a ConfigMap of nobody that just fits": {edits("/configmaps/", func(_ *hostile, object map[string]any) {
			meta, _ := object["metadata"].(map[string]any)
			delete(meta, "annotations")
			meta["managedFields"] = many[:25_000]
		}), false}, // This API server does not merge.
		"endpoints that just fit": {puts("/endpointslices", many, "items"), false},
		"an identity":             {puts("/deployments/", strings.Repeat("a", mega), "metadata", "uid"), true},
		"a restart": {
			puts("/configmaps/", strings.Repeat("a", mega), "metadata", "annotations", annotation+"managers-removed"), true,
		},
		"another owner": {edits("/configmaps/", func(_ *hostile, object map[string]any) {
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
			h := &hostile{stored: make(map[string][]byte), gate: make(chan struct{}, 1)}
			w := newHostileWorld(t, h)
			// Control: without the attack, the agent is installed.
			if result, _, err := w.reconcileOnce(); err != nil || result.Priority == nil {
				t.Fatalf("got %+v, %v, want a runtime that is ready", result, err)
			}
			kept := heap()
			test.hostile(h)
			for range 3 {
				arrived := h.arrived.Load()
				w.book.objects[client.ObjectKeyFromObject(w.object)].verify = true // All objects are applied.
				result, took, err := w.reconcileOnce()
				t.Logf("%d answers: %d KiB, %v, %d bytes of log: %.250v",
					h.arrived.Load()-arrived, took.memory>>10, took.time, took.log, err)
				if h.arrived.Load() == arrived {
					t.Error("no hostile answer has arrived")
				}
				if ready := err == nil && result.Priority != nil; ready != test.ready {
					t.Errorf("ready: %t, %v, want %t", ready, err, test.ready)
				}
				if took.memory > mostMemory || took.time > mostTime || took.log > mostLog {
					t.Errorf("it took %d MiB, %v and %d kB of log", took.memory>>20, took.time, took.log>>10)
				}
			}
			w.wantNothingKept(kept)
		})
	}
}

// wantNothingKept deletes the object.
func (w *hostileWorld) wantNothingKept(before uint64) {
	w.t.Helper()
	w.connections.clients.Remove(client.ObjectKeyFromObject(w.object)) // As for a client that others displace.
	after := heap()
	for n := 0; n < 100 && after > before+mostKept; n++ { // Connections end.
		after = heap()
	}
	if after > before+mostKept {
		w.t.Errorf("%d KiB are kept for the runtime", (after-before)>>10)
	}
	w.end(w.t.Context(), client.ObjectKeyFromObject(w.object))
	if n := len(w.book.objects) + len(w.book.runtimes) + len(w.book.stale); n > 0 {
		w.t.Errorf("%d entries are left of a runtime that is gone", n)
	}
}
