package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager" //nolint:depguard // Not released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"     //nolint:depguard // Not released.
)

// Operator is a replica of the operator.
type Operator struct {
	*machine.Process

	// Events is the address of its listener, without the load balancer.
	Events string

	podIP, metrics string
	args           []string
}

// StartCertManager starts the controllers of cert-manager.
func (l *Lab) StartCertManager(ctx context.Context) error {
	opts := certmanager.Options{Verbose: true, LogFile: l.log("cert-manager.log")}
	p, err := certmanager.Start(ctx, l.plane.Kubeconfig, opts)
	if err != nil {
		return err
	}
	l.onStop(p.Stop)
	return nil
}

// Deploy applies objects to the control plane, as kubectl does. The Deployment of the operator
// starts as processes, with the rights of its service account and no others. They replace those of
// another Deploy.
func (l *Lab) Deploy(ctx context.Context, objects []*unstructured.Unstructured) error {
	l.KillOperator()
	address, err := l.startService()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := l.Apply(ctx, l.Plane, object); err != nil {
			return err
		}
	}
	key, deployment := client.ObjectKey{Namespace: namespace, Name: "lifecycle-manager"}, &appsv1.Deployment{}
	if err := l.Plane.Get(ctx, key, deployment); err != nil {
		return err
	}
	account := deployment.Spec.Template.Spec.ServiceAccountName
	if err := impersonate(l.plane.Kubeconfig, l.operatorKubeconfig(), namespace, account); err != nil {
		return err
	}
	replicas := make([]*Operator, l.opts.Replicas)
	for i := range replicas {
		replicas[i], err = l.newOperator(ctx, i, address, deployment.Spec.Template.Spec.Containers[0].Args)
		if err != nil {
			return err
		}
	}
	l.setReplicas(replicas)
	return l.StartOperator(ctx)
}

// Apply applies an object with a field owner of its own. Unknown fields are errors. Apply waits
// while the API server does not serve a definition that it has just stored.
func (l *Lab) Apply(ctx context.Context, cluster client.Client, object *unstructured.Unstructured) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	strict := client.WithFieldValidation(cluster, metav1.FieldValidationStrict)
	_ = machine.Poll(ctx, func() bool {
		err = strict.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
			client.FieldOwner("lab"), client.ForceOwnership)
		return !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err)
	})
	return err
}

// impersonate writes a kubeconfig with the rights of a service account.
func impersonate(kubeconfig, path, namespace, account string) error {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = fmt.Sprintf("system:serviceaccount:%s:%s", namespace, account)
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
	}
	return clientcmd.WriteToFile(*config, path)
}

func (l *Lab) operatorKubeconfig() string { return filepath.Join(l.Dir, "operator.kubeconfig") }

// setReplicas replaces the list that connections of agents read.
func (l *Lab) setReplicas(replicas []*Operator) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replicas = replicas
}

// newOperator returns a replica, which does not run yet. The last value of a flag wins.
func (l *Lab) newOperator(ctx context.Context, number int, address string, args []string) (*Operator, error) {
	o := &Operator{podIP: fmt.Sprintf("10.0.0.%d", number+1)}
	var errs [3]error
	var probes string
	for i, free := range []*string{&o.Events, &o.metrics, &probes} {
		*free, errs[i] = machine.FreeAddress(ctx)
	}
	pod := strings.NewReplacer("$(POD_IP)", o.podIP, "$(POD_NAME)", fmt.Sprint("lifecycle-manager-", number))
	for _, arg := range args {
		o.args = append(o.args, pod.Replace(arg))
	}
	o.args = append(o.args, "-events-address="+address, "-events-bind-address="+o.Events,
		"-metrics-bind-address="+o.metrics, "-health-probe-bind-address="+probes,
		"-catalog-spread=0s")
	o.args = append(o.args, l.opts.OperatorArgs...)
	return o, errors.Join(errs[:]...)
}

// StartOperator starts the replicas that do not run, and returns when one leads.
func (l *Lab) StartOperator(ctx context.Context) error {
	for i, o := range l.replicas {
		if o.Process != nil && o.Running() {
			continue
		}
		started, err := machine.Launch(l.log(fmt.Sprintf("operator-%d.log", i+1)), l.programs.operator,
			append(os.Environ(), "KUBECONFIG="+l.operatorKubeconfig()), o.args)
		if err != nil {
			return err
		}
		o.Process = started
		l.onStop(started.Stop)
	}
	return machine.Poll(ctx, func() bool {
		_, err := l.Leader(ctx)
		return err == nil
	})
}

// KillOperator kills all replicas, as a crash does.
func (l *Lab) KillOperator() {
	for _, o := range l.replicas {
		o.Kill()
	}
}

// Reconfigure starts the operator again, with that number of replicas at most, and with more
// arguments. The last value of a flag wins.
func (l *Lab) Reconfigure(ctx context.Context, replicas int, args ...string) error {
	l.KillOperator()
	l.setReplicas(l.replicas[:min(replicas, len(l.replicas))])
	for _, o := range l.replicas {
		o.args = append(o.args, args...)
	}
	return l.StartOperator(ctx)
}
