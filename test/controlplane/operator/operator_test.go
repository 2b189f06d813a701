// Package operator_test runs operators with a listener on a real API server.
package operator_test

import (
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

func TestMain(m *testing.M) {
	// client-go leaks this goroutine if a watch of metadata ends while an event arrives: it sends to a
	// channel without a reader. Neither this module nor the controller manager can end it.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// TestManager runs controller managers on a real API server, with events over mTLS connections. The
// package of the adapter has tests of each part with a cache of its own.
func TestManager(t *testing.T) {
	t.Parallel()
	rig.SkipShort(t)
	crd := rig.Definition(kymaKind().Group, "kymas", kymaKind().Kind)
	crd.Spec.Versions[0].Name = kymaKind().Version
	l := &lab{apiserver.StartT(t, apiserver.Options{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}), rig.NewPKI(t)}
	rig.NoError(t, l.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kcp-system"}}))
	t.Run("leader endpoint", l.testLeaderEndpoint)
	t.Run("leader endpoint without rights", l.testLeaderWithoutRights)
	t.Run("replicas of the guide", l.testReplicas)
	t.Run("set-up of the guide", l.testEmbedding)
}

// lab is a control plane with certificates.
type lab struct {
	*apiserver.ControlPlane
	*rig.PKI
}

// kymaKind represents runtimes. There is no Go type for it.
func kymaKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: "Kyma"}
}

func (l *lab) newManager(metrics metricsserver.Options) manager.Manager {
	skip := true
	return rig.Must(manager.New(l.Config, manager.Options{
		Metrics: metrics, HealthProbeBindAddress: "0", Logger: logr.Discard(),
		Controller: ctrlconfig.Controller{SkipNameValidation: &skip},
	}))
}
