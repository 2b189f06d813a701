package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

const (
	// patience is the limit for one answer, and for one election.
	patience = 10 * time.Second
	// soon is the limit for the reconcile of an accepted event.
	soon = 5 * time.Second
)

// scene is the control plane and a record of its answers.
type scene struct {
	memory

	pki      *pki
	verify   verifierFor
	answered chan outcome
}

// room is more than a listener ever answers here, so that it never waits.
const room = 100

func newScene(pki *pki, verify verifierFor) *scene {
	return &scene{
		memory: memory{lease: &lease{}, done: make(chan reconciled, room)},
		pki:    pki, verify: verify, answered: make(chan outcome, room),
	}
}

// replica starts a replica. It leads if no other one does.
func (s *scene) replica(ctx context.Context, name string) (*replica, error) {
	return s.start(ctx, name, s.pki.material, s.verify, s.hooks())
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

// play sends the event of an attempt to a replica and returns the recorded outcome. It fails if the
// sender got another status.
func (s *scene) play(ctx context.Context, to *replica, a *attempt) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := s.send(ctx, to.addr, a)
	var recorded outcome
	select {
	case recorded = <-s.answered:
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("no answer of the listener: %w", errors.Join(err, ctx.Err()))
	}
	if recorded.status != status {
		return recorded, fmt.Errorf("status %d is recorded, the sender got %d: %v", recorded.status, status, err)
	}
	if status != http.StatusOK && status != http.StatusAccepted {
		return recorded, s.idle()
	}
	select {
	case done := <-s.done:
		recorded.triggered, recorded.by = done.runtime, done.replica
		return recorded, nil
	case <-time.After(soon):
		return recorded, fmt.Errorf("no reconcile within %v", soon)
	}
}

// idle fails if a reconcile was not caused by an accepted event.
func (s *scene) idle() error {
	select {
	case done := <-s.done:
		return fmt.Errorf("%s reconciled %s without an accepted event", done.replica, done.runtime)
	default:
		return nil
	}
}

// send returns the status of the answer. Without an answer it returns 0 and an error. Each attempt
// has its own connection.
func (s *scene) send(ctx context.Context, addr string, a *attempt) (int, error) {
	batch := core.Batch{Source: a.claims, Events: []core.Numbered{{WatchEvent: a.event, ID: "1"}}}
	body, err := a.version.Encode(&batch)
	if err != nil {
		return 0, err
	}
	url := "https://" + addr + a.version.Path(myOperator)
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
