package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// patience is the limit for one answer.
const patience = 10 * time.Second

// outcome is the answer of the listener, and the runtime that an operator would reconcile.
type outcome struct {
	status    int
	reason    string
	triggered core.RuntimeID
}

// scene is the listener and a record of its answers.
type scene struct {
	pki      *pki
	port     net.Listener
	stop     func() error
	answered chan outcome
	// triggered is the runtime of the event that is being answered. There is one at a time.
	triggered core.RuntimeID
}

// startScene starts a listener, which stop ends.
func startScene(ctx context.Context, pki *pki, material keys.Source, verify verifierFor) (*scene, error) {
	const room = 100 // More than there are answers, so that the listener never waits.

	s := &scene{pki: pki, answered: make(chan outcome, room)}
	// In a cluster, adapters/prometheus counts the answers.
	hooks := listener.Hooks{
		Answered: func(a hook.Answer) {
			s.answered <- outcome{status: a.Status, reason: string(a.Reason), triggered: s.triggered}
			s.triggered = ""
		},
		HandshakeFailed: func(hook.HandshakeFailure) { s.answered <- outcome{reason: noHandshake} },
	}

	var err error
	s.port, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}

	listening, err := newListener(material, verify, func(_ context.Context, d core.Delivery) error {
		s.triggered = d.Runtime
		return nil
	}, listener.Options{Listener: s.port, Hooks: hooks})
	if err != nil {
		return nil, errors.Join(err, s.port.Close())
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- listening.Start(ctx) }()
	s.stop = func() error {
		cancel()
		return <-ended
	}
	return s, nil
}

// playAttempt sends the event of an attempt on a new connection, and returns the recorded answer.
// It fails if the sender got another status.
func (s *scene) playAttempt(ctx context.Context, a attempt) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	transport := &http.Transport{TLSClientConfig: s.pki.clientConfig(a.sender), DisableKeepAlives: true}
	status, err := s.sendEvent(ctx, transport, a)

	var recorded outcome
	select {
	case recorded = <-s.answered:
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("no answer of the listener: %w", errors.Join(err, ctx.Err()))
	}
	if recorded.status != status {
		return recorded, fmt.Errorf("status %d is recorded, the sender got %d: %v", recorded.status, status, err)
	}
	return recorded, nil
}

// sendEvent returns the status of the answer. Without an answer it returns 0 and an error.
func (s *scene) sendEvent(ctx context.Context, transport *http.Transport, a attempt) (int, error) {
	batch := a.batch()
	body := must(a.asks.Encode(&batch))
	url := "https://" + s.port.Addr().String() + a.asks.Path(myOperator)

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body.Body))
	if err != nil {
		return 0, err
	}

	request.Header.Set("Content-Type", a.asks.ContentType())
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}

	return response.StatusCode, response.Body.Close()
}
