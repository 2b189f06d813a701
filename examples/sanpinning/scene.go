package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// patience is the limit for one answer.
const patience = 10 * time.Second

// scene is a running listener and a record of its answers.
type scene struct {
	pki  *pki
	addr string
	// answered and triggered have room for all attempts, so that the listener never waits.
	answered  chan outcome
	triggered chan core.RuntimeID
	stop      func() error
}

func newScene(ctx context.Context, pki *pki, verify core.Verifier, attempts int) (*scene, error) {
	s := &scene{pki: pki, answered: make(chan outcome, attempts), triggered: make(chan core.RuntimeID, attempts)}
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.addr = port.Addr().String()
	// An operator would put a request into its workqueue: see controllerruntime.Source.
	operator := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		s.triggered <- d.Runtime
		return nil
	})
	l, err := newListener(pki.material, verify, operator, listener.Options{Listener: port, Hooks: s.hooks()})
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	s.stop = start(ctx, l)
	return s, nil
}

// hooks records the answers. In a cluster, adapters/prometheus counts them.
func (s *scene) hooks() listener.Hooks {
	return listener.Hooks{
		Answered: func(_ string, _ core.Manager, status int, reason string, _ time.Duration) {
			s.answered <- outcome{status: status, reason: reason}
		},
		HandshakeFailed: func(string) { s.answered <- outcome{reason: reasonHandshake} },
	}
}

func start(ctx context.Context, l *listener.Listener) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.Start(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// play sends the event of an attempt and returns the recorded outcome. It fails if the sender got
// another status.
func (s *scene) play(ctx context.Context, a *attempt) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := s.send(ctx, a)
	var recorded outcome
	select {
	case recorded = <-s.answered:
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("no answer of the listener: %w", errors.Join(err, ctx.Err()))
	}
	if recorded.status != status {
		return recorded, fmt.Errorf("status %d is recorded, the sender got %d: %v", recorded.status, status, err)
	}
	select {
	case recorded.triggered = <-s.triggered: // The operator gets an event before the sender its answer.
	default:
	}
	return recorded, nil
}

// send returns the status of the answer. Without an answer it returns 0 and an error. Each attempt
// has its own connection.
func (s *scene) send(ctx context.Context, a *attempt) (int, error) {
	batch := core.Batch{Source: a.claims, Events: []core.Numbered{{WatchEvent: a.event, ID: "1"}}}
	body, err := a.version.Encode(&batch)
	if err != nil {
		return 0, err
	}
	url := "https://" + s.addr + a.version.Path(manager)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body.Body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", a.version.ContentType())
	transport := &http.Transport{TLSClientConfig: s.pki.client(a.certificate), DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func (p *pki) client(certificate *tls.Certificate) *tls.Config {
	if certificate == nil {
		certificate = &tls.Certificate{}
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    p.ours.Pool(),
		// The field Certificates would send no certificate of another CA.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil },
	}
}

// changed returns an event about a Deployment.
func changed() core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
	}
}
