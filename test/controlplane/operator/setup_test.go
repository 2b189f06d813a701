package operator_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// setUp embeds the watcher in an operator. A change in a runtime reconciles the Kyma that has the
// name of the runtime.
func setUp(
	ctx context.Context, mgr manager.Manager, addr string, material keys.Source, kymas reconcile.Reconciler,
) error {
	kyma := &metav1.PartialObjectMetadata{}
	kyma.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"})
	watched, fleetErr := fleet.New(fleet.Options{})
	runtimes, err := controllerruntime.NewRuntimes(ctx, mgr.GetCache(), kyma.GroupVersionKind(), controllerruntime.ByName,
		controllerruntime.RuntimesOptions{Fleet: watched, Managers: []core.Manager{"my-operator"}})
	if err := errors.Join(fleetErr, err); err != nil {
		return err
	}
	source, err := controllerruntime.SetUpListener(mgr, addr, "my-operator", controllerruntime.MutualTLS(material),
		listener.SANPinning(runtimes), controllerruntime.EnqueueByRuntime(runtimes),
		controllerruntime.ComponentOptions{Listener: listener.Options{Fleet: watched}})
	if err != nil {
		return err
	}
	return builder.ControllerManagedBy(mgr).For(kyma).WatchesRawSource(source).Complete(kymas)
}

// TestSetUpIsTheExample requires that TestManager runs the code in the documentation of
// SetUpListener.
func TestSetUpIsTheExample(t *testing.T) {
	example := setUpIn(t, "../../../adapters/controllerruntime/example_component_test.go")
	if here := setUpIn(t, "setup_test.go"); here != example {
		t.Errorf("setUp differs from the example:\n%s\nthe example:\n%s", here, example)
	}
}

func setUpIn(t *testing.T, file string) string {
	t.Helper()
	source := string(rig.Must(os.ReadFile(file)))
	_, after, _ := strings.Cut(source, "func set"+"Up(")
	body, _, found := strings.Cut(after, "\n}\n")
	if !found {
		t.Fatalf("%s has no function setUp", file)
	}
	return body
}
