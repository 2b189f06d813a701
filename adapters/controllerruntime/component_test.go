package controllerruntime_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func TestRegisterListenerComponentRefuses(t *testing.T) {
	t.Parallel()
	peers := listener.FromTLSWithRoots(func() *x509.CertPool { return nil }, listener.PeerOptions{})
	verify, none := listener.InsecureAllowAll(), controllerruntime.ComponentOptions{}
	for name, tc := range map[string]struct {
		component string
		peers     listener.Peers
		verify    core.Verifier
		mapFunc   controllerruntime.MapFunc[string]
		opts      controllerruntime.ComponentOptions
		want      string
	}{
		"no component":         {"", peers, verify, byWatched, none, "DNS-1123 label"},
		"component in capital": {"Operator", peers, verify, byWatched, none, "DNS-1123 label"},
		"component with slash": {"a/b", peers, verify, byWatched, none, "DNS-1123 label"},
		"component too long":   {strings.Repeat("a", 64), peers, verify, byWatched, none, "DNS-1123 label"},
		"no peers":             {"operator", listener.Peers{}, verify, byWatched, none, "operator: listener"},
		"no verifier":          {"operator", peers, nil, byWatched, none, "operator: listener"},
		"a nil verifier":       {"operator", peers, core.VerifierFunc(nil), byWatched, none, "operator: listener"},
		"no map":               {"operator", peers, verify, nil, none, "map function"},
		"two addresses": {
			"operator", peers, verify, byWatched,
			controllerruntime.ComponentOptions{Listener: listener.Options{Addr: ":8443"}},
			`":8082" and ":8443"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, source, err := controllerruntime.RegisterListenerComponent(
				":8082", tc.component, tc.peers, tc.verify, tc.mapFunc, tc.opts)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("have %v, want an error that says %q", err, tc.want)
			}
			if events != nil || source != nil {
				t.Error("have a listener or a source beside the error")
			}
		})
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

func (a *answersOfServer) Apply(ctx context.Context, object runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
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
// operator that leads. An endpoint is removed, also if it was being written when the operator ended.
func TestLeaderEndpointOutlastsRefusals(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "my-operator-leader", nil)
	for leads, server := range map[time.Duration]*answersOfServer{
		time.Minute: {answers: []error{nil, forbidden, nil}}, time.Second: {answers: []error{nil}, takes: 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			endpoint, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
				"192.0.2.1", map[string]int32{"events": 8082}, controllerruntime.LeaderEndpointOptions{})
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

// With a negative interval it would write without a pause.
func TestNewLeaderEndpointRefuses(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]controllerruntime.LeaderEndpointOptions{"client": {}, "RefreshInterval": {RefreshInterval: -1}} {
		server := map[string]client.Writer{"RefreshInterval": &answersOfServer{}}[name]
		_, err := controllerruntime.NewLeaderEndpoint(server, types.NamespacedName{Namespace: "kcp", Name: "events"},
			"192.0.2.1", map[string]int32{"events": 8082}, opts)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
	}
}
