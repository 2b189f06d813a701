package controllerruntime_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

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
