package installation

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/watchtest"
)

// A runtime may have room for one of two replicas, for ever.
func TestOneReplicaThatAnswersIsEnough(t *testing.T) {
	late := []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
	}}

	tests := map[string]struct {
		status appsv1.DeploymentStatus
		want   State
	}{
		"room for one": {appsv1.DeploymentStatus{
			Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 1, Conditions: late,
		}, Ready},
		"room for none": {appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, Conditions: late}, Failed},
		"a former replica answers": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 1, Conditions: late,
		}, Failed},
		"one of two is new": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 2,
		}, Progressing},
		"an old one is left": {appsv1.DeploymentStatus{
			Replicas: 3, UpdatedReplicas: 2, AvailableReplicas: 3,
		}, Progressing},
		"an old generation": {appsv1.DeploymentStatus{
			ObservedGeneration: -1, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2,
		}, Progressing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: test.status,
			}
			if have := rollout(d); have.State != test.want {
				t.Errorf("got %+v, want %s", have, test.want)
			}
		})
	}
}

func TestLinesGoToTheLoggerOfTheOperator(t *testing.T) {
	var lines strings.Builder
	logf.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(&lines, nil)))
	must(New(Parts{Image: "image", ControlPlane: "a:443"}, Options{})).opts.Logger.Info("a line")
	if !strings.Contains(lines.String(), "a line") {
		t.Errorf("got %q, want the line", lines.String())
	}
}

// The object of a runtime may vanish without an end.
func TestARuntimeThatIsGoneIsForgotten(t *testing.T) {
	i := must(New(Parts{Image: "image", ControlPlane: "a:443"}, Options{}))
	i.memory.records.store("prod", record{})

	i.Forget("prod")
	if _, known := i.memory.records.load("prod"); known {
		t.Error("Forget left the record of the runtime")
	}
}

// A missing client is a mistake of the caller. It must not pass for a runtime without an agent.
func TestUninstallWantsAClient(t *testing.T) {
	i := must(New(Parts{Image: "image", ControlPlane: "a:443"}, Options{}))

	status, err := i.Uninstall(t.Context(), Runtime{ID: "prod"})
	if !errors.Is(err, errNoClient) || status.State == Removed {
		t.Errorf("got %+v, %v, want an error", status, err)
	}
}

// TestAddressOfTheRuntimeComesFirst also covers the port, which the NetworkPolicy of the agent opens.
func TestAddressOfTheRuntimeComesFirst(t *testing.T) {
	installer := &Installer{controlPlane: "kcp.example.com:443"}
	for own, want := range map[string]struct {
		address string
		port    int32
	}{
		"":                       {"kcp.example.com:443", 443},
		"other.example.com:8443": {"other.example.com:8443", 8443},
		// Spellings that an agent reads as one address do not restart it.
		"Other.Example.com.:8443": {"other.example.com:8443", 8443},
		"[FD00:0::1]:8443":        {"[fd00::1]:8443", 8443},
		"bücher.example:443":      {"xn--bcher-kva.example:443", 443},
	} {
		r := &Runtime{ControlPlane: own}
		address := installer.addressFor(r)
		if port, _ := parsePort(address); address != want.address || port != want.port {
			t.Errorf("ControlPlane %q: %s and port %d, want %s and %d", own, address, port, want.address, want.port)
		}
	}
}

// An agent gets each field of a watch, except conditions, which need an API server. A change of any
// field leads to a correction.
func TestAgentsGetEachFieldOfAWatch(t *testing.T) {
	whole, changed := watchtest.Watches()
	setting := func(w watch.Watch) string { return watchersSetting([]watch.Watch{w}) }
	parameters := func(w watch.Watch) [32]byte {
		return (&Installer{}).rendererOf(&Runtime{Watches: []watch.Watch{w}}).sumParameters()
	}

	for path, w := range changed {
		if parameters(w) == parameters(whole) {
			t.Errorf("%s: a change is not noticed", path)
		}
		if (setting(w) == setting(whole)) != strings.HasPrefix(path, ".Conditions") {
			t.Errorf("%s: a change has %s", path, setting(w))
		}
	}
}

// A former webhook configuration without its other objects delays each write of the runtime.
func TestFormerObjectsAreRemovedWithoutTheLastOne(t *testing.T) {
	former := SKRWebhook("kyma-system")
	first := former[0].DeepCopy()
	finalizers := []string{"example.com/hold"}
	first.SetFinalizers(finalizers)
	i := &Installer{opts: Options{Replaces: former, Logger: slog.New(slog.DiscardHandler)}.withDefaults()}
	in := i.newVisit(&Runtime{ID: "runtime", Client: fake.NewClientBuilder().WithObjects(first).Build()})

	for range 2 {
		status, err := in.replaceFormer(t.Context(), Status{State: Ready})
		if err != nil || status.State != Progressing {
			t.Errorf("got %+v, %v, want it to wait for the webhook configuration", status, err)
		}
	}

	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(first.GroupVersionKind())
	if err := in.Get(t.Context(), client.ObjectKeyFromObject(first), live); err != nil {
		t.Fatal(err)
	}

	live.SetFinalizers(nil)
	if err := in.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	if status, err := in.replaceFormer(t.Context(), Status{State: Ready}); err != nil || status.State != Ready {
		t.Errorf("got %+v, %v after the end of all objects, want it ready", status, err)
	}
}

// A list has the names of two generations. Each is removed, also after an interruption, and not
// before the agent is proved. An object that another installer has made stays.
func TestFormerObjectsOfTwoGenerations(t *testing.T) {
	both := append(SKRWebhook("kyma-system"), RenamedSKRWebhook("kyma-system")...)
	for name, test := range map[string]struct {
		live         *unstructured.Unstructured
		mark         string
		may, removed bool
	}{
		"configuration":                        {both[0], "", true, true},
		"renamed configuration":                {RenamedSKRWebhook("")[0], "", true, true},
		"Secret after an interruption":         {SKRWebhook("kyma-system")[12], "", true, true},
		"renamed Secret after an interruption": {both[len(both)-1], "", true, true},
		"agent is not proved":                  {both[0], "", false, false},
		"of another operator":                  {RenamedSKRWebhook("")[0], "fleet.example.com/installed-by", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			live := test.live.DeepCopy()
			if test.mark != "" {
				live.SetAnnotations(map[string]string{test.mark: "another"})
			}

			i := &Installer{opts: Options{
				Replaces: both, MayReplace: func(id core.RuntimeID) bool { return id == "runtime" && test.may },
				Logger: slog.New(slog.DiscardHandler),
			}.withDefaults()}

			in := i.newVisit(&Runtime{ID: "runtime", Client: fake.NewClientBuilder().WithObjects(live).Build()})
			status, err := in.replaceFormer(t.Context(), Status{State: Ready})
			want := Ready
			if !test.may {
				want = Progressing
			}

			if err != nil || status.State != want {
				t.Errorf("got %+v, %v, want %s", status, err, want)
			}

			err = in.Get(t.Context(), client.ObjectKeyFromObject(live), live)
			if removed := apierrors.IsNotFound(err); removed != test.removed {
				t.Errorf("removed: %t, want %t: %v", removed, test.removed, err)
			}
		})
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// The NetworkPolicy of the agent opens the way to the control plane: the proxy, or the address.
func TestWayOut(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		settings map[string]string
		want     []int32
	}{
		"no proxy":             {nil, []int32{443}},
		"proxy":                {map[string]string{settingProxy: "http://proxy:3129"}, []int32{3129}},
		"proxy without a port": {map[string]string{settingProxy: "http://proxy"}, []int32{3128}},
		"direct":               {map[string]string{settingProxy: proxyDirect, settingHTTPSProxy: "http://proxy:3129"}, []int32{443}},
		"environment":          {map[string]string{settingHTTPSProxy: "http://proxy:3129"}, []int32{443, 3129}},
		"its default port":     {map[string]string{settingHTTPSProxy: "http://proxy"}, []int32{443, 80}},
		"without a scheme":     {map[string]string{settingHTTPSProxy: "proxy:3129"}, []int32{443, 3129}},
		"the same port":        {map[string]string{settingHTTPSProxy: "http://proxy:443"}, []int32{443}},
		"in upper case":        {map[string]string{settingHTTPSProxy: "HTTP://proxy:3129"}, []int32{443, 3129}},
		"with a path":          {map[string]string{settingHTTPSProxy: "http://proxy:3129/path"}, []int32{443}},
		"no port of TCP":       {map[string]string{settingHTTPSProxy: "http://proxy:99999"}, []int32{443}},
		"unusable":             {map[string]string{settingHTTPSProxy: "socks5://proxy:1080"}, []int32{443}},
	} {
		got := settings(test.settings).wayOut("kcp.example.com:443")
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: ports %v, want %v", name, got, test.want)
		}
	}

	for text, valid := range map[string]bool{
		"": true, proxyDirect: true, "http://proxy": true, "https://proxy:1": false, "http://user:secret@proxy:1": false, "none": false,
	} {
		err := settings{settingProxy: text}.validateProxy()
		if (err == nil) != valid || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want it valid: %t, and no password", text, err, valid)
		}
	}
}
