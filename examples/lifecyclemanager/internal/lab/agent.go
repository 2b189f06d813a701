package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// agent is a process of the agent's Deployment.
type agent struct {
	*machine.Process

	hash             string
	webhook, metrics string
	ready            bool
}

// keepAgents runs the agents of the Deployment. A new template replaces all at once. Nil ends them.
func (n *node) keepAgents(ctx context.Context, deployment *appsv1.Deployment) error {
	if deployment == nil || deployment.DeletionTimestamp != nil {
		n.stopAgents()
		return n.unpublish(ctx)
	}
	text, err := json.Marshal(deployment.Spec.Template)
	if err != nil {
		return err
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(text))
	n.drop(func(a *agent) bool { return a.hash != hash || !a.Running() })
	if err := n.mount(ctx, deployment); err != nil {
		return client.IgnoreNotFound(err) // A pod waits for its volumes.
	}
	for range int(*deployment.Spec.Replicas) - len(n.agents) {
		if err := n.startAgent(ctx, deployment, hash); err != nil {
			return err
		}
	}
	for _, a := range n.agents {
		n.probe(ctx, a)
	}
	return n.publish(ctx, len(n.ready()))
}

func (n *node) unpublish(ctx context.Context) error {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: installation.DefaultNamespace, Name: installation.Name,
	}}
	return ignoreRaces(n.cluster.Client.Delete(ctx, slice))
}

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
		err := n.cluster.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: source.SecretName}, secret)
		return secret.Data, err
	}
	if volume.ConfigMap == nil {
		return nil, fmt.Errorf("volume %s: want a Secret or a ConfigMap", volume.Name)
	}
	config := &corev1.ConfigMap{}
	err := n.cluster.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: volume.ConfigMap.Name}, config)
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

// startAgent starts a process with the environment of the container.
func (n *node) startAgent(ctx context.Context, deployment *appsv1.Deployment, hash string) (err error) {
	a := &agent{hash: hash}
	var webhookErr, metricsErr error
	a.webhook, webhookErr = machine.FreeAddress(ctx)
	a.metrics, metricsErr = machine.FreeAddress(ctx)
	canary, canaryErr := n.canary(ctx, deployment)
	if err := errors.Join(webhookErr, metricsErr, canaryErr); err != nil {
		return err
	}
	env := environment(&deployment.Spec.Template.Spec.Containers[0], n.volumes)
	maps.Copy(env, canary)
	bind(env, "WEBHOOK", a.webhook)
	bind(env, "METRICS", a.metrics)
	n.started++
	env["POD_NAME"] = fmt.Sprintf("%s-%d", installation.Name, n.started)
	env["STOP_DELAY"], env["SHUTDOWN_TIMEOUT"] = "0s", "1s" // The demo ends soon.
	a.Process, err = machine.Launch(n.log(n.name+"-agent.log"), n.programs.agent, list(env), nil)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agents = append(n.agents, a)
	return nil
}

// environment returns that of a container, with the paths of this machine.
func environment(container *corev1.Container, volumes map[string]*mounted) map[string]string {
	env := make(map[string]string)
	for _, variable := range container.Env {
		for _, mount := range container.VolumeMounts {
			if rest, ok := strings.CutPrefix(variable.Value, mount.MountPath+"/"); ok {
				variable.Value = volumes[mount.Name].Path(rest)
			}
		}
		env[variable.Name] = strings.ReplaceAll(variable.Value, "$$", "$")
	}
	return env
}

func bind(env map[string]string, server, address string) {
	host, port, _ := strings.Cut(address, ":")
	env[server+"_BIND"], env[server+"_PORT"] = host, port
}

func list(env map[string]string) (pairs []string) {
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	return pairs
}

// canary returns the settings that a pod has from its service account.
func (n *node) canary(ctx context.Context, deployment *appsv1.Deployment) (map[string]string, error) {
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
	return map[string]string{
		"CANARY_API_SERVER": n.cluster.Config.Host, "CANARY_TOKEN_FILE": token, "CANARY_CA_CERT": ca,
	}, err
}

// probe notes whether an agent is ready.
func (n *node) probe(ctx context.Context, a *agent) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.metrics+"/readyz", http.NoBody)
	if err != nil {
		return
	}
	answer, err := probes.Do(request)
	ready := err == nil && answer.StatusCode == http.StatusOK
	if err == nil {
		_ = answer.Body.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	a.ready = ready
}

// probes has no connections that could outlive an agent.
var probes = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (n *node) ready() (agents []*agent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.agents {
		if a.ready {
			agents = append(agents, a)
		}
	}
	return agents
}

func (n *node) stopAgents() { n.drop(func(*agent) bool { return true }) }

// drop ends agents.
func (n *node) drop(condition func(*agent) bool) {
	n.mu.Lock()
	var kept, ending []*agent
	for _, a := range n.agents {
		if condition(a) {
			ending = append(ending, a)
		} else {
			kept = append(kept, a)
		}
	}
	n.agents = kept
	n.mu.Unlock()
	for _, a := range ending {
		a.Stop()
	}
}
