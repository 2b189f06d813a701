package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// managerImage is the prefix of the images of ../../module, which the lab runs. Other images of
// modules count as available.
const managerImage = "keda.example.com/keda-manager:"

// agentKey is the name of the agent's Deployment and Service.
var agentKey = client.ObjectKey{Namespace: installation.Name, Name: installation.Name}

// pod is a process of a Deployment.
type pod struct {
	*machine.Process

	owner client.ObjectKey
	// hash is that of the template.
	hash string
	// webhook and metrics are addresses of an agent.
	webhook, metrics string
	ready            bool
}

// keep runs the pods of a Deployment, and returns the number of those that are ready. A new
// template replaces all at once.
func (n *node) keep(ctx context.Context, deployment *appsv1.Deployment) (available int32, err error) {
	owner, template := client.ObjectKeyFromObject(deployment), &deployment.Spec.Template
	isManager := strings.HasPrefix(template.Spec.Containers[0].Image, managerImage)
	if owner != agentKey && !isManager {
		return *deployment.Spec.Replicas, nil
	}
	text, err := json.Marshal(template)
	if err != nil {
		return 0, err
	}
	hash, broken := fmt.Sprintf("%x", sha256.Sum256(text)), isManager && n.broken.Load()
	n.drop(func(p *pod) bool { return p.owner == owner && (broken || p.hash != hash || !p.Running()) })
	if broken {
		return 0, nil
	}
	if err := n.mount(ctx, deployment); err != nil {
		return 0, client.IgnoreNotFound(err) // A pod waits for its volumes.
	}
	pods := n.podsOf(owner)
	for _, p := range pods {
		ready := isManager || n.probe(ctx, p)
		n.mu.Lock()
		p.ready = ready
		n.mu.Unlock()
	}
	for range int(*deployment.Spec.Replicas) - len(pods) {
		p, start := &pod{owner: owner, hash: hash}, n.startAgent
		if isManager {
			start = n.startManager
		}
		if err := start(ctx, p, deployment); err != nil {
			return 0, err
		}
		n.mu.Lock()
		n.pods = append(n.pods, p)
		n.mu.Unlock()
	}
	return int32(len(n.ready(owner))), nil //nolint:gosec // A handful.
}

func (n *node) podsOf(owner client.ObjectKey) (pods []*pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.pods), func(p *pod) bool { return p.owner != owner })
}

func (n *node) ready(owner client.ObjectKey) (pods []*pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.pods), func(p *pod) bool { return p.owner != owner || !p.ready })
}

// drop ends pods.
func (n *node) drop(condition func(*pod) bool) {
	var ending []*pod
	n.mu.Lock()
	n.pods = slices.DeleteFunc(n.pods, func(p *pod) bool {
		dropped := condition(p)
		if dropped {
			ending = append(ending, p)
		}
		return dropped
	})
	n.mu.Unlock()
	for _, p := range ending {
		p.Stop()
	}
}

// Break ends the managers of the modules, or starts them again. Meanwhile their Deployments are not
// available.
func (r *Runtime) Break(broken bool) { r.node.broken.Store(broken) }

// startManager starts the manager of a module with the rights of its service account.
func (n *node) startManager(_ context.Context, p *pod, deployment *appsv1.Deployment) (err error) {
	name := p.owner.Namespace + "-" + p.owner.Name
	kubeconfig := filepath.Join(n.dir, name+".kubeconfig")
	account := deployment.Spec.Template.Spec.ServiceAccountName
	if err := impersonate(n.cluster.Kubeconfig, kubeconfig, p.owner.Namespace, account); err != nil {
		return err
	}
	p.Process, err = machine.Launch(n.log(n.name+"-"+name+".log"), n.programs.manager,
		append(os.Environ(), "KUBECONFIG="+kubeconfig), nil)
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

// startAgent starts an agent with the environment of the container.
func (n *node) startAgent(ctx context.Context, p *pod, deployment *appsv1.Deployment) (err error) {
	var errs [3]error
	p.webhook, errs[0] = machine.FreeAddress(ctx)
	p.metrics, errs[1] = machine.FreeAddress(ctx)
	canary, err := n.canary(ctx, deployment)
	errs[2] = err
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	n.started++
	// The last value of a variable wins.
	env := append(environment(&deployment.Spec.Template.Spec.Containers[0], n.volumes), canary...)
	env = append(env, fmt.Sprintf("POD_NAME=%s-%d", installation.Name, n.started),
		"STOP_DELAY=0s", "SHUTDOWN_TIMEOUT=1s") // The demo ends soon.
	for server, address := range map[string]string{"WEBHOOK": p.webhook, "METRICS": p.metrics} {
		host, port, _ := strings.Cut(address, ":")
		env = append(env, server+"_BIND="+host, server+"_PORT="+port)
	}
	p.Process, err = machine.Launch(n.log(n.name+"-agent.log"), n.programs.agent, env, nil)
	return err
}

// environment returns that of a container, with the paths of this machine.
func environment(container *corev1.Container, volumes map[string]*mounted) (env []string) {
	for _, variable := range container.Env {
		for _, mount := range container.VolumeMounts {
			if rest, ok := strings.CutPrefix(variable.Value, mount.MountPath+"/"); ok {
				variable.Value = volumes[mount.Name].Path(rest)
			}
		}
		env = append(env, variable.Name+"="+strings.ReplaceAll(variable.Value, "$$", "$"))
	}
	return env
}

// canary returns the settings that a pod has from its service account.
func (n *node) canary(ctx context.Context, deployment *appsv1.Deployment) ([]string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: deployment.Namespace, Name: deployment.Spec.Template.Spec.ServiceAccountName,
	}}
	request := &authenticationv1.TokenRequest{}
	if err := n.cluster.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, err
	}
	token, ca := filepath.Join(n.dir, "token"), filepath.Join(n.dir, "ca.crt")
	err := errors.Join(os.WriteFile(token, []byte(request.Status.Token), 0o600),
		os.WriteFile(ca, n.cluster.Config.CAData, 0o600))
	return []string{
		"CANARY_API_SERVER=" + n.cluster.Config.Host, "CANARY_TOKEN_FILE=" + token, "CANARY_CA_CERT=" + ca,
	}, err
}

// probe reports whether an agent is ready.
func (n *node) probe(ctx context.Context, p *pod) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.metrics+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	answer, err := probes.Do(request)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// probes has no connections that could outlive an agent.
var probes = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// mounted has the content of a volume.
type mounted struct {
	*testpki.Volume

	data map[string][]byte
}

// mount writes the volumes of the agent as a kubelet does, if they have changed.
func (n *node) mount(ctx context.Context, deployment *appsv1.Deployment) error {
	for _, volume := range deployment.Spec.Template.Spec.Volumes {
		data, err := n.content(ctx, deployment.Namespace, &volume)
		if err != nil {
			return err
		}
		if err := n.write(volume.Name, data); err != nil {
			return err
		}
	}
	return nil
}

// content returns that of a Secret or a ConfigMap.
func (n *node) content(ctx context.Context, namespace string, volume *corev1.Volume) (map[string][]byte, error) {
	if source := volume.Secret; source != nil {
		secret := &corev1.Secret{}
		err := n.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: source.SecretName}, secret)
		return secret.Data, err
	}
	if volume.ConfigMap == nil {
		return nil, fmt.Errorf("volume %s: want a Secret or a ConfigMap", volume.Name)
	}
	config := &corev1.ConfigMap{}
	err := n.cluster.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: volume.ConfigMap.Name}, config)
	data := make(map[string][]byte, len(config.Data))
	for key, value := range config.Data {
		data[key] = []byte(value)
	}
	return data, err
}

func (n *node) write(name string, data map[string][]byte) error {
	volume := n.volumes[name]
	if volume == nil {
		volume = &mounted{Volume: testpki.NewVolume(filepath.Join(n.dir, "volume-"+name))}
		if err := os.Mkdir(volume.Path("."), 0o700); err != nil {
			return err
		}
		n.volumes[name] = volume
	}
	if reflect.DeepEqual(volume.data, data) {
		return nil
	}
	volume.data = data
	return volume.Write(data)
}
