package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// settings are those of an operator: a file, and addresses.
type settings struct{ Kubeconfig, Servers, Dead string }

// operate is an operator with the documented defaults. It prints a line for each report.
func operate(ctx context.Context) error {
	s := kit.Settings[settings]()
	ctrl.SetLogger(logr.Discard())
	config := lab.Must(clientcmd.BuildConfigFromFlags("", s.Kubeconfig))
	config.QPS = -1 // As ctrl.GetConfig sets it.
	known := newScheme()
	mgr := lab.Must(ctrl.NewManager(config, ctrl.Options{
		Scheme: known, Metrics: server.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	}))
	direct := lab.Must(client.New(config, client.Options{Scheme: known}))
	set := lab.Must(certificates.New(direct, types.NamespacedName{Namespace: namespace, Name: "watcher"},
		[]string{"control-plane.example.com"},
		func(string, []core.RuntimeID) []core.RuntimeID { return nil },
		certificates.Options{}))
	installer := lab.Must(installation.New("agent.example.com/agent:v1", "control-plane.example.com:443",
		installation.Options{}))
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	kubeconfigs := runtimes.NewKubeconfigs(mgr.GetAPIReader(), "config", client.ObjectKeyFromObject,
		runtimes.KubeconfigOptions{Configure: s.toLoopback})
	if err := runtimes.SetUp(mgr, kind, identify, kubeconfigs, set, installer,
		runtimes.Options{Report: report}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newScheme() *runtime.Scheme {
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1beta2.AddToScheme(known), certv1.AddToScheme(known)); err != nil {
		panic(err)
	}
	return known
}

// toLoopback connects to the servers, or to an address that never answers, with the dialer of the
// operator.
func (s settings) toLoopback(config *rest.Config) {
	dial := config.Dial
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		to := s.Servers
		if strings.HasPrefix(address, "dead-") {
			to = s.Dead
		}
		return dial(ctx, network, to)
	}
}

func identify(_ context.Context, object client.Object) (runtimes.Identity, error) {
	domain := object.GetAnnotations()["skr-domain"]
	if domain == "" {
		return runtimes.Identity{}, nil
	}
	return runtimes.Identity{ID: core.RuntimeID(object.GetName()), Domain: domain}, nil
}

func report(_ context.Context, object client.Object, status installation.Status) error {
	fmt.Printf("%s %s\n", object.GetName(), status.State)
	return nil
}
