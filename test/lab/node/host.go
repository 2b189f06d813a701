package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// HostOptions are the choices of [NewHost].
type HostOptions struct {
	// Env are variables, as NAME=value, that win over those of a container.
	Env []string
	// Log returns the path of the log of a Deployment.
	Log func(deployment types.NamespacedName) string
	// Note gets a line for each error.
	Note func(line string)
}

// NewHost returns a node for a demo without rights. Its containers are processes of the same user in
// the network of this machine. A variable <NAME>_PORT with the number of a container port has a free
// port instead. Images are found by the beginning of their name. Pods with others count as available.
// Leases go with their namespace. Errors are notes, and fail nothing.
func NewHost(t testing.TB, opts Options) *Node {
	t.Helper()
	note := func(format string, args ...any) { opts.Host.Note(fmt.Sprintf(format, args...)) }
	n := &Node{t: t, host: true, opts: opts, logf: note, errorf: note}
	n.settle()
	return n
}

// Break ends the pods of all images with a prefix and starts no others, until the next call. ""
// breaks none.
func (n *Node) Break(prefix string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = prefix
}

func (n *Node) isBroken(deployment *appsv1.Deployment) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken != "" && strings.HasPrefix(deployment.Spec.Template.Spec.Containers[0].Image, n.broken)
}

// program returns the path of the program of an image, "" for one that counts as available.
func (n *Node) program(image string) string {
	if !n.host {
		return n.imagePath(image)
	}
	for prefix, path := range n.opts.Images {
		if strings.HasPrefix(image, prefix) {
			return path
		}
	}
	return ""
}

// deleteLeases deletes those of a namespace that ends: the Lease of a manager belongs to no module.
func (n *Node) deleteLeases(ctx context.Context, namespace string) error {
	if !n.host {
		return nil
	}
	return n.plane.Client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(namespace))
}

// openNetwork gives the pod a network of its own, or free ports of this machine.
func (p *pod) openNetwork() (err error) {
	if !p.node.host {
		p.net, err = newNetwork(p.ip)
		return err
	}
	p.ports = make(map[uint16]string)
	for _, port := range p.container().Ports {
		_, free, portErr := machine.ReservePort()
		p.ports[uint16(port.ContainerPort)], err = rig.Address(free), errors.Join(err, portErr)
	}
	return err
}

// dial connects to a port of the container.
func (p *pod) dial(ctx context.Context, port uint16) (net.Conn, error) {
	if p.net != nil {
		return p.net.dial(ctx, netip.AddrPortFrom(p.ip, port))
	}
	return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", p.ports[port])
}

// toHost changes variables to the paths and ports of this machine. A program cannot find the
// files of its service account where they should be.
func (p *pod) toHost(values map[string]string) error {
	for name, value := range values {
		for _, mount := range p.container().VolumeMounts {
			if strings.HasPrefix(value, mount.MountPath+"/") {
				values[name] = p.path(value)
			}
		}
		number, err := strconv.ParseUint(value, 10, 16)
		if prefix, ok := strings.CutSuffix(name, "_PORT"); ok && err == nil && p.ports[uint16(number)] != "" {
			values[prefix+"_BIND"], values[name], _ = strings.Cut(p.ports[uint16(number)], ":")
		}
	}
	for _, pair := range p.node.opts.Host.Env {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	if !p.account {
		return nil
	}
	server, ca, token := p.node.plane.Config.Host, p.path(accountPath+"/ca.crt"), p.path(accountPath+"/token")
	values["CANARY_API_SERVER"], values["CANARY_CA_CERT"], values["CANARY_TOKEN_FILE"] = server, ca, token
	config := clientcmdapi.NewConfig()
	config.Clusters["runtime"] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: ca}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{TokenFile: token}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "runtime", AuthInfo: "account"}
	config.CurrentContext = "pod"
	values["KUBECONFIG"] = p.path("/kubeconfig")
	return clientcmd.WriteToFile(*config, values["KUBECONFIG"])
}
