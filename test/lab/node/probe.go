package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

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
	url := strings.ToLower(string(spec.HTTPGet.Scheme)) + "://" + netip.AddrPortFrom(p.ip, number).String() + spec.HTTPGet.Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := p.transport(number).RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode >= 400 { // As kubelets judge.
		return fmt.Errorf("GET %s: %s", spec.HTTPGet.Path, answer.Status)
	}
	return nil
}

// transport leads to a port of the pod, each request on a connection of its own.
func (p *pod) transport(port uint16) *http.Transport {
	return &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, port) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}
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
		address := netip.AddrPortFrom(p.ip, number)
		return rig.GetWith(ctx, &http.Client{Transport: p.transport(number)}, "http://"+address.String()+path)
	}
	return nil, fmt.Errorf("no pod of Deployment %s", deployment)
}
