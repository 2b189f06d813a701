package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab" //nolint:depguard // Not released.
)

// Operator is a replica of the operator.
type Operator struct {
	*rig.Process

	// Events is the address of its listener, without the load balancer.
	Events string

	podIP, metrics string
}

// Deploy applies a folder below config/ to the control plane, as `kubectl apply -k` does. The
// Deployment of the operator starts as processes, with the rights of its service account and no
// others. They replace the processes of another Deploy.
func (l *Lab) Deploy(folder string) {
	l.Helper()

	l.KillOperator()
	for _, object := range l.kustomize(folder) {
		l.Apply(object)
	}

	key := client.ObjectKey{Namespace: namespace, Name: "lifecycle-manager"}
	deployment := &appsv1.Deployment{}
	rig.NoError(l.TB, l.Plane.Get(l.Context(), key, deployment))
	pod := deployment.Spec.Template.Spec

	rights := l.kubeconfig(l.plane, func(config *clientcmdapi.Config) {
		for _, user := range config.AuthInfos {
			user.Impersonate = fmt.Sprintf("system:serviceaccount:%s:%s", namespace, pod.ServiceAccountName)
			user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
		}
	})
	rig.NoError(l.TB, clientcmd.WriteToFile(*rights, l.operatorKubeconfig()))

	l.args = slices.Clone(pod.Containers[0].Args)
	l.args = append(l.args, "-events-address="+l.startService(), "-catalog-spread=0s")
	l.Reconfigure(l.Replicas)
}

func (l *Lab) operatorKubeconfig() string { return filepath.Join(l.Dir, "operator.kubeconfig") }

// startService simulates the load balancer and the Service of the events, and returns the address.
// It routes connections to the endpoint that the operator has published.
func (l *Lab) startService() (address string) {
	relay, err := rig.NewRelayTo("127.0.0.1:0", func() string {
		leader, err := l.Leader(context.Background())
		if err != nil {
			return ""
		}
		return leader.Events
	})
	rig.NoError(l.TB, err)
	l.Cleanup(relay.Close)
	return strings.Replace(relay.Addr(), "127.0.0.1", "localhost", 1)
}

// Reconfigure starts the operator again, with that number of replicas, and with more arguments. The
// last value of a flag wins.
func (l *Lab) Reconfigure(replicas int, args ...string) {
	l.Helper()

	l.KillOperator()
	l.OperatorArgs = append(l.OperatorArgs, args...)

	started := make([]*Operator, replicas)
	for i := range started {
		started[i] = l.newOperator(i)
	}

	l.mu.Lock()
	l.replicas = started
	l.mu.Unlock()
	l.StartOperator()
}

// newOperator returns a replica, which does not run yet.
func (l *Lab) newOperator(number int) *Operator {
	free := func() string { return rig.Address(rig.FreePort(l.TB)) }
	o := &Operator{Events: free(), podIP: fmt.Sprintf("10.0.0.%d", number+1), metrics: free()}

	// The cluster would replace these references in the arguments of a Deployment.
	pod := strings.NewReplacer("$(POD_IP)", o.podIP, "$(POD_NAME)", fmt.Sprint("lifecycle-manager-", number))
	var args []string
	for _, arg := range l.args {
		args = append(args, pod.Replace(arg))
	}

	args = append(args, "-events-bind-address="+o.Events, "-metrics-bind-address="+o.metrics,
		"-health-probe-bind-address="+free())
	o.Process = rig.NewProcess(l.TB, fmt.Sprint("operator-", number+1), l.operator,
		append(os.Environ(), "KUBECONFIG="+l.operatorKubeconfig()), append(args, l.OperatorArgs...)...)
	return o
}

// StartOperator starts the replicas that do not run, and returns when one leads.
func (l *Lab) StartOperator() {
	l.Helper()
	for _, o := range l.replicas {
		o.Launch()
	}

	l.Eventually("a replica leads", func() bool {
		_, err := l.Leader(l.Context())
		return err == nil
	})
}

// KillOperator kills all replicas, as a crash does.
func (l *Lab) KillOperator() {
	for _, o := range l.replicas {
		o.Kill()
	}
}

// Leader returns the replica that leads: its address is the address of the endpoint.
func (l *Lab) Leader(ctx context.Context) (*Operator, error) {
	key := client.ObjectKey{Namespace: namespace, Name: "lifecycle-manager-events-leader"}
	slice := &discoveryv1.EndpointSlice{}
	if err := l.Plane.Get(ctx, key, slice); err != nil {
		return nil, err
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	for _, endpoint := range slice.Endpoints {
		for _, replica := range l.replicas {
			if strings.Join(endpoint.Addresses, "") == replica.podIP {
				return replica, nil
			}
		}
	}

	return nil, errors.New("no replica leads")
}

// Apply applies an object to the control plane, with a field owner of its own. Unknown fields are
// errors. Apply waits while the API server does not serve a definition that it has just stored.
func (l *Lab) Apply(object *unstructured.Unstructured) {
	l.Helper()

	strict := client.WithFieldValidation(l.Plane, metav1.FieldValidationStrict)
	var err error
	rig.Eventually(l.TB, 3*time.Minute, "the API server serves "+object.GetKind(), func() bool {
		err = strict.Apply(l.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
			client.FieldOwner("lab"), client.ForceOwnership)
		return !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err)
	})
	rig.NoError(l.TB, err)
}

// Fleet returns the freshness of a runtime for each controller.
func (l *Lab) Fleet(ctx context.Context, id string) ([]fleet.Status, error) {
	text, err := l.askLeader(ctx, "/fleet?runtime="+id)
	if err != nil {
		return nil, err
	}

	var answer struct {
		Runtimes []fleet.Status `json:"runtimes"`
	}
	err = json.Unmarshal(text, &answer)
	return answer.Runtimes, err
}

// Metrics returns the metrics of the replica that leads, in the text format of Prometheus.
func (l *Lab) Metrics(ctx context.Context) ([]byte, error) { return l.askLeader(ctx, "/metrics") }

// Reconciles returns the number of reconciles of a controller by cause, 0 without an answer.
func (l *Lab) Reconciles(ctx context.Context, controller, cause string) int {
	text, _ := l.Metrics(ctx)
	return int(rig.Sum(text, "lifecycle_manager_reconciles_total", `controller="`+controller+`"`, `cause="`+cause+`"`))
}

// askLeader sends a request to the replica that leads, as a reader with a token. It does not verify
// the certificate, which the operator creates when it starts.
func (l *Lab) askLeader(ctx context.Context, path string) ([]byte, error) {
	leader, err := l.Leader(ctx)
	if err != nil {
		return nil, err
	}

	if l.reader == "" {
		l.reader, err = l.newReader(ctx)
		if err != nil {
			return nil, err
		}
	}

	reader := &http.Client{Timeout: 5 * time.Second, Transport: transport.NewBearerAuthRoundTripper(l.reader,
		&http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // See above.
			DisableKeepAlives: true,
		})}
	return rig.GetWith(ctx, reader, "https://"+leader.metrics+path)
}

// newReader returns the token of a service account that may read, and nothing else.
func (l *Lab) newReader(ctx context.Context) (string, error) {
	token, err := rig.Account(ctx, l.Plane, client.ObjectKey{Namespace: namespace, Name: "reader"},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef: rbacv1.RoleRef{
				APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "lifecycle-manager-reader",
			},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
		})
	return string(token), err
}
