package node

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// untilReady is the longest wait between two probes of a container that is not ready yet. Kubelets wait as long as for one that is, but
// it would be the test that waits.
const untilReady = 100 * time.Millisecond

// probe lets the declared probes say whether the container is ready, and ends it when it does not live.
func (r *process) probe(ctx context.Context) {
	container := r.pod.container()

	if container.ReadinessProbe == nil {
		r.pod.set(func() { r.pod.ready = true })
	} else {
		r.probes.Go(func() { r.readiness(ctx, container.ReadinessProbe) })
	}

	if container.LivenessProbe != nil {
		r.probes.Go(func() { r.liveness(ctx, container.LivenessProbe) })
	}
}

func (r *process) readiness(ctx context.Context, probe *corev1.Probe) {
	failures, every := int32(0), untilReady

	for wait(ctx, every) {
		switch err := r.once(ctx, probe); {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures, every = 0, seconds(probe.PeriodSeconds)
			r.pod.set(func() { r.pod.ready = true })
		default:
			failures++

			if failures >= probe.FailureThreshold {
				every = untilReady
				r.pod.set(func() { r.pod.ready = false })
			}
		}
	}
}

func (r *process) liveness(ctx context.Context, probe *corev1.Probe) {
	for failures := int32(0); wait(ctx, seconds(probe.PeriodSeconds)); {
		err := r.once(ctx, probe)
		if err == nil {
			failures = 0

			continue
		}

		failures++

		if failures >= probe.FailureThreshold && ctx.Err() == nil {
			r.pod.node.t.Logf("pod %s: killed by its liveness probe: %v", r.pod.name, err)

			_ = r.cmd.Process.Kill() // It may have ended.

			return
		}
	}
}

func (r *process) once(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(probe.TimeoutSeconds))
	defer cancel()

	get := probe.HTTPGet

	_, err := r.pod.get(ctx, strings.ToLower(string(get.Scheme)), get.Port.String(), get.Path)

	return err
}

// get asks the container at the address of its pod.
func (p *pod) get(ctx context.Context, scheme, port, path string) ([]byte, error) {
	number, err := p.port(port)
	if err != nil {
		return nil, err
	}

	address := netip.AddrPortFrom(p.ip, number)
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return p.net.dial(ctx, address) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}

	return fetch(ctx, &http.Client{Transport: transport}, scheme+"://"+address.String()+path)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// wait reports false when ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
