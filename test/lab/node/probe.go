package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// requestTimeout bounds one request of [Node.Get].
const requestTimeout = time.Minute

// check is a probe of a container with its schedule.
type check struct {
	spec     *corev1.Probe // nil: always passes
	next     time.Time
	failures int32
	passes   bool
}

func newCheck(spec *corev1.Probe, passes bool) check {
	return check{spec: spec, passes: passes || spec == nil}
}

// run probes the container if it is time for that. A container that does not pass is probed at
// every call. A kubelet would wait for the period there, too, and the test with it.
func (c *check) run(p *pod) {
	if c.spec == nil || time.Now().Before(c.next) {
		return
	}
	c.failures++
	if err := p.probe(c.spec); err == nil {
		c.failures, c.passes = 0, true
	}
	c.passes = c.passes && c.failures < c.spec.FailureThreshold
	if c.passes {
		c.next = time.Now().Add(time.Duration(c.spec.PeriodSeconds) * time.Second)
	}
}

// probe makes one HTTP request to the container, at the address of its pod.
func (p *pod) probe(spec *corev1.Probe) error {
	number, err := p.port(spec.HTTPGet.Port.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(spec.TimeoutSeconds)*time.Second)
	defer cancel()
	answer, err := p.request(ctx, strings.ToLower(string(spec.HTTPGet.Scheme)), number, spec.HTTPGet.Path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode >= 400 { // As kubelets judge.
		return fmt.Errorf("GET %s: %s", spec.HTTPGet.Path, answer.Status)
	}
	return nil
}

// request makes one HTTP request to a port of the pod, without another one on its connection.
func (p *pod) request(ctx context.Context, scheme string, port uint16, path string) (*http.Response, error) {
	address := netip.AddrPortFrom(p.ip, port)
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, port) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address.String()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(request)
}

// Get returns the answer of a pod of a Deployment to an HTTP request, as Prometheus would see it.
// The port is a name or a number.
func (n *Node) Get(ctx context.Context, deployment types.NamespacedName, port, path string) ([]byte, error) {
	for _, p := range n.running() {
		if p.owner != deployment || p.now().Ending || p.now().Pid == 0 {
			continue
		}
		number, err := p.port(port)
		if err != nil {
			return nil, err
		}
		return p.get(ctx, number, path)
	}
	return nil, fmt.Errorf("no pod of Deployment %s", deployment)
}

func (p *pod) get(ctx context.Context, port uint16, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := p.request(ctx, "http", port, path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, answer.Status, text)
	}
	return text, err
}
