package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	binary      = "/container"
	accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// unknown names a field of the pod that this node would have to leave out, "" if there is none.
func unknown(spec *corev1.PodSpec) string {
	container := &spec.Containers[0]
	probes := []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe}

	switch {
	case len(spec.Containers) != 1 || len(spec.InitContainers) > 0:
		return "pods with more than one container"
	case len(container.Command) > 0 || container.WorkingDir != "" || len(container.EnvFrom) > 0:
		return "command, workingDir and envFrom"
	case container.Lifecycle != nil || container.StartupProbe != nil:
		return "lifecycle and startupProbe"
	case slices.ContainsFunc(probes, func(p *corev1.Probe) bool { return p != nil && p.HTTPGet == nil }):
		return "probes other than httpGet"
	case len(spec.HostAliases) > 0:
		return "hostAliases"
	case slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap == nil && v.Secret == nil }):
		return "volumes other than Secrets and ConfigMaps"
	case slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.SubPath != "" }):
		return "mounts with subPath"
	default:
		return ""
	}
}

func (p *pod) container() *corev1.Container { return &p.spec.Containers[0] }

// path returns where a file of the container is on this machine.
func (p *pod) path(inside string) string { return filepath.Join(p.dir, inside) }

func (n *Node) apiServer() string {
	address, err := url.Parse(n.plane.Config.Host)
	if err != nil || address.Host == "" {
		return n.plane.Config.Host
	}
	return address.Host
}

// prepare makes the root, without the files of Secrets, and the ways out of the network. The root
// belongs to the superuser, so that the container cannot change it.
func (p *pod) prepare() error {
	if p.net == nil {
		return errors.Join(os.MkdirAll(p.dir, 0o700), p.mountAll())
	}

	names, err := p.openWays()
	if err != nil {
		return err
	}

	names["localhost"] = p.node.opts.Platform.loopback()
	names[p.state.Name] = p.ip
	var hosts strings.Builder
	for name, address := range names {
		fmt.Fprintf(&hosts, "%s %s\n", address, name)
	}

	err = errors.Join(
		os.MkdirAll(p.path("/etc"), 0o755),
		os.Link(p.node.imagePath(p.container().Image), p.path(binary)),
		os.WriteFile(p.path("/etc/hosts"), []byte(hosts.String()), 0o644),
	)

	return errors.Join(err, p.mountAll())
}

func (p *pod) mountAll() (err error) {
	for _, mount := range p.container().VolumeMounts {
		err = errors.Join(err, p.mount(&mount))
	}
	return errors.Join(err, p.mountAccount(), p.environment())
}

func (p *pod) mount(mount *corev1.VolumeMount) error {
	at := slices.IndexFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
	if at < 0 {
		return fmt.Errorf("there is no volume %s", mount.Name)
	}
	if config := p.spec.Volumes[at].ConfigMap; config != nil {
		// Every user may read it.
		v, err := newVolume(p.path(mount.MountPath), os.FileMode(corev1.ConfigMapVolumeSourceDefaultMode), -1)
		v.read = func() (map[string][]byte, error) { return p.readConfig(config.Name) }
		p.volumes = append(p.volumes, v)

		return err
	}

	source := p.spec.Volumes[at].Secret
	mode := corev1.SecretVolumeSourceDefaultMode
	group := int64(-1)
	if source.DefaultMode != nil {
		mode = *source.DefaultMode
	}
	if security := p.spec.SecurityContext; security != nil && security.FSGroup != nil && p.net != nil {
		group, mode = *security.FSGroup, mode|0o440 // As kubelets do for fsGroup.
	}

	v, err := newVolume(p.path(mount.MountPath), os.FileMode(mode), int(group))
	v.secret, v.read = true, func() (map[string][]byte, error) { return p.readSecret(source) }
	p.volumes = append(p.volumes, v)

	return err
}

func (p *pod) readConfig(name string) (map[string][]byte, error) {
	var config corev1.ConfigMap
	err := p.node.plane.Client.Get(context.Background(), types.NamespacedName{Namespace: p.owner.Namespace, Name: name}, &config)
	files := map[string][]byte{}

	for name, text := range config.Data {
		files[name] = []byte(text)
	}

	return files, err
}

// readSecret fails when a key is missing, as a kubelet does.
func (p *pod) readSecret(source *corev1.SecretVolumeSource) (map[string][]byte, error) {
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: p.owner.Namespace, Name: source.SecretName}
	if err := p.node.plane.Client.Get(context.Background(), key, &secret); err != nil || len(source.Items) == 0 {
		return secret.Data, err
	}

	files := map[string][]byte{}
	for _, item := range source.Items {
		content, ok := secret.Data[item.Key]
		if !ok {
			return nil, fmt.Errorf("volume: the Secret has no key %s", item.Key)
		}

		files[item.Path] = content
	}

	return files, nil
}

// mountAccount mounts the token of the service account, if the pod wants one. It makes the account
// "default", as the controller manager does.
func (p *pod) mountAccount() error {
	if wanted := p.spec.AutomountServiceAccountToken; wanted != nil && !*wanted {
		return nil
	}

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.owner.Namespace,
		Name:      cmp.Or(p.spec.ServiceAccountName, "default"),
	}}
	if p.spec.ServiceAccountName == "" {
		err := p.node.plane.Client.Create(context.Background(), account.DeepCopy())
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("account: %w", err)
		}
	}

	request := &authenticationv1.TokenRequest{}
	if err := p.node.plane.Client.SubResource("token").Create(context.Background(), account, request); err != nil {
		return fmt.Errorf("token: %w", err)
	}

	token := []byte(request.Status.Token)
	p.secrets = append(p.secrets, token)
	v, err := newVolume(p.path(accountPath), 0o644, -1)
	if err == nil {
		_, err = v.write(map[string][]byte{
			"token": token, "ca.crt": p.node.plane.Config.CAData, "namespace": []byte(p.owner.Namespace),
		})
	}

	p.account = true
	return err
}

// environment sets the variables and the arguments of the process. Later variables may refer to
// earlier ones.
func (p *pod) environment() error {
	host, port, err := net.SplitHostPort(p.node.apiServer())
	if err != nil {
		return err
	}

	fields := map[string]string{
		"metadata.name": p.state.Name, "metadata.namespace": p.owner.Namespace, "status.podIP": p.ip.String(),
	}
	values := map[string]string{
		"PATH": "/", "HOSTNAME": p.state.Name, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port,
	}

	for _, pair := range p.node.opts.ImageEnv[p.container().Image] {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}

	for _, variable := range p.container().Env {
		value := expand(variable.Value, values)
		if from := variable.ValueFrom; from != nil {
			if from.FieldRef == nil || fields[from.FieldRef.FieldPath] == "" {
				return fmt.Errorf("variable %s: the node does not know the source of its value", variable.Name)
			}
			value = fields[from.FieldRef.FieldPath]
		}

		values[variable.Name] = value
	}

	if p.net == nil {
		err = p.toHost(values)
	}

	for _, name := range slices.Sorted(maps.Keys(values)) {
		p.env = append(p.env, name+"="+values[name])
	}

	for _, arg := range p.container().Args {
		p.args = append(p.args, expand(arg, values))
	}

	return err
}

// expand replaces $(NAME). Unknown names stay (k8s.io/api/core/v1, EnvVar.Value).
func expand(text string, values map[string]string) string {
	for name, value := range values {
		text = strings.ReplaceAll(text, "$("+name+")", value)
	}
	return text
}

// imageUser is the user and the group of images, see tools/image.
const imageUser = 65532

// credential returns the user of the security contexts. The user of the container takes precedence.
// Without any user, the user of the image counts.
func (p *pod) credential() *syscall.Credential {
	user := int64(imageUser)
	group := int64(imageUser)
	credential := &syscall.Credential{}

	if s := p.spec.SecurityContext; s != nil {
		user, group = value(s.RunAsUser, user), value(s.RunAsGroup, group)
		if s.FSGroup != nil {
			credential.Groups = append(credential.Groups, uint32(*s.FSGroup))
		}
	}

	if s := p.container().SecurityContext; s != nil {
		user, group = value(s.RunAsUser, user), value(s.RunAsGroup, group)
	}

	credential.Uid, credential.Gid = uint32(user), uint32(group)
	return credential
}

func value(p *int64, otherwise int64) int64 {
	if p == nil {
		return otherwise
	}
	return *p
}
