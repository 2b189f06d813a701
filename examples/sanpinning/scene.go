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

// patience is how long an answer may take.
const patience = 10 * time.Second

// scene is a listener that runs, and what it does.
type scene struct {
	pki  *pki
	addr string
	// answered and triggered get what the listener and the operator see. They have room for all attempts, so nobody waits.
	answered  chan outcome
	triggered chan core.RuntimeID
	stop      func() error
}

func newScene(ctx context.Context, pki *pki, verify core.Verifier, attempts int) (*scene, error) {
	s := &scene{pki: pki, answered: make(chan outcome, attempts), triggered: make(chan core.RuntimeID, attempts)}

	port, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}

	s.addr = port.Addr().String()

	// An operator would put a request into its workqueue: see controllerruntime.RegisterListenerComponent.
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

// hooks are where metrics come from: adapters/prometheus has them ready.
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

// joinStopped is the error of a scene that has ended.
func joinStopped(err, stopped error) error {
	if stopped != nil {
		stopped = fmt.Errorf("stop the listener: %w", stopped)
	}

	return errors.Join(err, stopped)
}

// play returns how an attempt was answered: what the listener says of it, which must be what the sender was told.
func (s *scene) play(ctx context.Context, a *attempt) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	told, err := s.send(ctx, a)

	var seen outcome
	select {
	case seen = <-s.answered:
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("the listener has seen nothing: %w", errors.Join(err, ctx.Err()))
	}

	if seen.status != told {
		return seen, fmt.Errorf("the listener says that it has answered %d, the sender got %d: %w", seen.status, told, err)
	}

	select {
	case seen.triggered = <-s.triggered: // The operator has it before the sender is answered.
	default:
	}

	return seen, nil
}

// send returns the status of the answer, or 0 with the error if there was none. Each attempt has a connection of its own.
func (s *scene) send(ctx context.Context, a *attempt) (int, error) {
	batch := core.Batch{Source: a.claims, Events: []core.Numbered{{WatchEvent: a.event, ID: "1"}}}

	body, err := a.version.Encode(&batch)
	if err != nil {
		return 0, err
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.addr+a.version.Path(manager), bytes.NewReader(body.Body))
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
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    p.ours.Pool(),
		// Not Certificates: a client would keep back one that is not of the CA which the listener asks for.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if certificate == nil {
				return &tls.Certificate{}, nil
			}

			return certificate, nil
		},
	}
}

// changed is an event about a Deployment.
func changed() core.WatchEvent {
	return core.WatchEvent{
		Watched:    types.NamespacedName{Namespace: "default", Name: "demo"},
		WatchedGVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
	}
}
