package runtimes

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

func TestRelevantLeavesOutTheStatusOnly(t *testing.T) {
	kyma := func(change func(*metav1.ObjectMeta)) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Generation: 3, ResourceVersion: "7",
			Annotations: map[string]string{"skr-domain": "a"},
		}}

		change(&pod.ObjectMeta)
		return pod
	}

	tests := map[string]struct {
		change func(*metav1.ObjectMeta)
		want   bool
	}{
		"status":     {func(m *metav1.ObjectMeta) { m.ResourceVersion = "8" }, false},
		"finalizers": {func(m *metav1.ObjectMeta) { m.Finalizers = []string{names.Names{}.WithDefaults().Finalizer} }, false},
		"spec":       {func(m *metav1.ObjectMeta) { m.Generation++ }, true},
		"domain":     {func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"skr-domain": "b"} }, true},
		"label":      {func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a": "b"} }, true},
		"deletion": {
			func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			true,
		},
		"no generation: data": {func(m *metav1.ObjectMeta) { m.Generation, m.ResourceVersion = 0, "8" }, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			update := event.UpdateEvent{ObjectOld: kyma(func(*metav1.ObjectMeta) {}), ObjectNew: kyma(test.change)}
			if got := (&reconciler{}).relevantChanges().Update(update); got != test.want {
				t.Errorf("relevant: got %t, want %t", got, test.want)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	if err := option.NoneNegative((Options{}).withDefaults()); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := option.NoneNegative((Options{Interval: -1, Concurrent: -1}).withDefaults()); err == nil {
		t.Error("an interval and a number below zero are taken")
	}
}

// Such a pair would fail in each runtime.
func TestCertificatesAreForTheServiceOfTheAgent(t *testing.T) {
	issuer := newReconciler(t, newPlane(t), nil).certificates
	for namespace, fits := range map[string]bool{"": true, "elsewhere": false} {
		for _, informer := range []bool{false, true} {
			installer, err := installation.New(installation.Parts{Image: "image", ControlPlane: "a:443"}, installation.Options{Namespace: namespace, Informer: informer})
			check(t, err)
			if err := checkService(issuer, installer); (err == nil) != (fits || informer) {
				t.Errorf("namespace %q, informer %t: %v", namespace, informer, err)
			}
		}
	}
}

// The fleet of the listener may be another one by mistake, or be left out. Both are named soon after the start.
func TestFleetThatNobodyFeedsIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		fleet, feeds bool
		says         string // in the log, "" for nothing
	}{
		"no fleet":         {false, false, "no fleet: a removed runtime stays"},
		"fleet of its own": {true, false, "no listener or consumer reports to the fleet of these runtimes"},
		"the listener's":   {true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReconciler(t, newPlane(t), nil)
				r.opts.Name = "runtimes-a"
				var lines []string
				log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})

				if test.fleet {
					watched, err := fleet.New(fleet.Options{})
					check(t, err)
					r.opts.Fleet = watched
				}

				ctx, cancel := context.WithCancel(t.Context())
				var feeding sync.WaitGroup
				if test.feeds {
					handlers := map[core.Manager]core.Handler{"kyma": core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })}
					feeding.Go(func() { _ = r.opts.Fleet.Receiver().Start(ctx, handlers) }) // It ends with ctx.
				}

				check(t, r.checkFleet(log).Start(ctx))
				cancel()
				feeding.Wait()
				have := strings.Join(lines, "\n")
				if (have == "") != (test.says == "") || !strings.Contains(have, test.says) ||
					have != "" && !strings.Contains(have, `"controller"="runtimes-a"`) {
					t.Errorf("log %q, want %q and the name", have, test.says)
				}
			})
		})
	}
}
