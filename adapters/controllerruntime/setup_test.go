package controllerruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime/controllerruntimetest"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// records is a log that many goroutines write.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) add(prefix, args string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, prefix+args)
}

func (r *records) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.lines, "\n"), text)
}

func newManager(t *testing.T, log *records) manager.Manager {
	t.Helper()

	mgr, err := manager.New(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{
		Logger: funcr.New(log.add, funcr.Options{}), Metrics: metricsserver.Options{BindAddress: "0"},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) { return controllerruntimetest.NewCache(), nil },
		NewClient: func(*rest.Config, client.Options) (client.Client, error) {
			return nil, nil //nolint:nilnil // Nothing uses it.
		},
	})
	check(t, err)
	return mgr
}

func post(t *testing.T, sender *http.Client, url string) int {
	t.Helper()

	body := strings.NewReader(`{"watched":{"Namespace":"a","Name":"b"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`)
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, body))
	request.Header.Set("Content-Type", "application/json")
	answer, err := sender.Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// defaultLog is that of controller-runtime, which a process sets once.
var defaultLog records

func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(defaultLog.add, funcr.Options{}))
	goleak.VerifyTestMain(m)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestBrowserFilterRefusesNil(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a provider that is nil is taken")
		}
	}()
	controllerruntime.BrowserFilter(nil)
}

// A panic must not be silent if no logger is given.
func TestTheDefaultLoggerIsThatOfTheOperator(t *testing.T) {
	t.Parallel()
	source := controllerruntime.NewSource(func(context.Context, core.Delivery) ([]string, error) {
		panic("without a logger")
	}, controllerruntime.SourceOptions{})
	started(t, source, newQueue(t))
	if err := source.Handle(t.Context(), delivery("skr-1", "a")); err == nil || !defaultLog.has("without a logger") {
		t.Errorf("error %v, and ctrl.Log has %q", err, defaultLog.lines)
	}
}

// Lines keep their attributes and levels, and debug lines need verbosity 4.
func TestLogger(t *testing.T) {
	t.Parallel()

	var lines bytes.Buffer
	sink := funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{Verbosity: 4})
	logger := controllerruntime.Logger(sink).With("manager", "operator")
	logger.Error("broken", "runtime", "skr-1")
	logger.Debug("handled")
	logger.Log(t.Context(), slog.LevelDebug-1, "too much")
	want := `"msg"="broken" "error"=null "manager"="operator" "runtime"="skr-1"` + "\n" +
		`"level"=4 "msg"="handled" "manager"="operator"` + "\n"
	if got := lines.String(); got != want {
		t.Errorf("have\n%swant\n%s", got, want)
	}
}

// answersOfServer are the answers of an API server to each Apply. The last one stays.
type answersOfServer struct {
	client.Writer

	answers          []error
	takes            time.Duration
	calls, endpoints int
}

func (a *answersOfServer) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if len((&client.ApplyOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return nil // There is no such object yet.
	}

	err := a.answers[min(a.calls, len(a.answers)-1)]
	a.calls++
	if slice, ok := object.(*discoveryv1ac.EndpointSliceApplyConfiguration); ok && err == nil {
		a.endpoints = len(slice.WithResourceVersion("1").Endpoints)
	}

	select {
	case <-time.After(a.takes):
		return err
	case <-ctx.Done():
		return ctx.Err() // It is written.
	}
}

// An API server that has just started may forbid what it allows soon after. That must not end an
// operator that leads. An endpoint is removed, also if it was being written when the operator
// ended.
func TestLeaderEndpointOutlastsRefusals(t *testing.T) {
	t.Parallel()

	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "my-operator-leader", nil)
	for leads, server := range map[time.Duration]*answersOfServer{
		time.Minute: {answers: []error{nil, forbidden, nil}}, time.Second: {answers: []error{nil}, takes: 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			endpoint, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
				controllerruntime.ReplicaEndpoint{Operator: "my-operator", Address: "192.0.2.1", Ports: map[string]int32{"events": 8082}},
				controllerruntime.LeaderEndpointOptions{})
			check(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), leads)
			defer cancel()
			if err := endpoint.Start(ctx); err != nil {
				t.Errorf("Start returns %v, want it to try again", err)
			}
			if ctx.Err() == nil || server.calls < len(server.answers) || server.endpoints > 0 {
				t.Errorf("Start ended after %d writes with %d endpoints, want none", server.calls, server.endpoints)
			}
		})
	}
}

// readSlice is an API server with the EndpointSlice of a former leader, in version 7.
type readSlice struct {
	client.Writer

	versions chan string // of each write
}

func (r *readSlice) Apply(_ context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	if slice, ok := object.(*discoveryv1ac.EndpointSliceApplyConfiguration); ok {
		version := ""
		if slice.ResourceVersion != nil {
			version = *slice.ResourceVersion
		}
		r.versions <- version
		return errors.New("no answer")
	}

	mark := &metav1.FieldsV1{}
	err := mark.UnmarshalJSON([]byte(`{"f:metadata":{"f:labels":{"f:endpointslice.kubernetes.io/managed-by":{}}}}`))
	marked, _ := object.(metav1.Object)
	marked.SetUID("u")
	marked.SetResourceVersion("7")
	marked.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "former", FieldsV1: mark}})
	return err
}

// Another operator may take the slice over between the read of its mark and the write.
func TestATakeOverNeedsTheVersionThatWasRead(t *testing.T) {
	t.Parallel()

	server := &readSlice{versions: make(chan string, 1)}
	replica := controllerruntime.ReplicaEndpoint{
		Operator: "my-operator", Address: "192.0.2.1", Ports: map[string]int32{"events": 8082},
	}
	service := types.NamespacedName{Namespace: "kcp", Name: "events"}
	endpoint, err := controllerruntime.NewLeaderEndpoint(server, service, replica, controllerruntime.LeaderEndpointOptions{})
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- endpoint.Start(ctx) }()
	if version := <-server.versions; version != "7" {
		t.Errorf("the slice is written if it has version %q, want 7", version)
	}

	cancel()
	check(t, <-ended)
}

// With a negative interval it would write without a pause.
func TestNewLeaderEndpointRefuses(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]controllerruntime.LeaderEndpointOptions{"client": {}, "RefreshInterval": {RefreshInterval: -1}} {
		server := map[string]client.Writer{"RefreshInterval": &answersOfServer{}}[name]
		_, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
			controllerruntime.ReplicaEndpoint{Operator: "my-operator", Address: "192.0.2.1", Ports: map[string]int32{"events": 8082}}, opts)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
}
