package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// managerImage is the prefix of the images of ../../module, which the lab runs. Other images of
// modules count as available.
const managerImage = "keda.example.com/keda-manager:"

// module is the process of a module's Deployment.
type module struct {
	*machine.Process

	image string
}

// Break ends the managers of the modules, or starts them again. Meanwhile their Deployments are not
// available.
func (r *Runtime) Break(broken bool) { r.node.broken.Store(broken) }

// keepModule runs the manager of a module, and returns the number of available replicas.
func (n *node) keepModule(deployment *appsv1.Deployment) (available int32, err error) {
	name := deployment.Namespace + "-" + deployment.Name
	image, known := deployment.Spec.Template.Spec.Containers[0].Image, n.modules[name]
	switch {
	case !strings.HasPrefix(image, managerImage):
		return *deployment.Spec.Replicas, nil
	case n.broken.Load():
		n.stopModule(name)
		return 0, nil
	case known != nil && known.image == image && known.Running():
		return 1, nil
	}
	n.stopModule(name)
	kubeconfig := filepath.Join(n.dir, name+".kubeconfig")
	account := deployment.Spec.Template.Spec.ServiceAccountName
	if err := impersonate(n.cluster.Kubeconfig, kubeconfig, deployment.Namespace, account); err != nil {
		return 0, err
	}
	started, err := machine.Launch(n.log(n.name+"-"+name+".log"), n.programs.manager,
		append(os.Environ(), "KUBECONFIG="+kubeconfig), nil)
	if err == nil {
		n.modules[name] = &module{started, image}
	}
	return 0, err // It is available in the next round, if it has not ended.
}

// dropModules ends the managers without a Deployment.
func (n *node) dropModules(deployments []appsv1.Deployment) {
	wanted := make(map[string]bool)
	for i := range deployments {
		wanted[deployments[i].Namespace+"-"+deployments[i].Name] = true
	}
	for name := range n.modules {
		if !wanted[name] {
			n.stopModule(name)
		}
	}
}

func (n *node) stopModule(name string) {
	if known := n.modules[name]; known != nil {
		known.Stop()
		delete(n.modules, name)
	}
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

// Kubeconfig is the path of an administrator's kubeconfig.
func (r *Runtime) Kubeconfig() string { return r.plane.Kubeconfig }
