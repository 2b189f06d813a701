package soak

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	// connections is how many an API server keeps to a webhook that 8 writers keep busy.
	connections = 8
	// stable objects change again and again; names beyond them are seen once, as those of pods are.
	stable = 5000
	// largeOneIn is the share of objects of 100 kB: one in this number.
	largeOneIn = 50

	// One in this number of names is new. During an outage all are kept, and 10,000 fit.
	usual  = 3
	during = 10
)

// apiServer calls a webhook as an API server does, at a lower cost.
type apiServer struct {
	t                *testing.T
	client           *http.Client
	url              string
	small, large     string // reviews
	serial, reviewed atomic.Int64
}

func newAPIServer(t *testing.T, pki *lab.PKI, agent *lab.Agent) *apiServer {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pki.CA.Pool(), MinVersion: tls.VersionTLS13},
		MaxIdleConnsPerHost: connections,
		MaxConnsPerHost:     connections,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &apiServer{
		t: t, client: &http.Client{Transport: transport, Timeout: time.Minute},
		url:   "https://" + lab.Address(agent.WebhookPort) + "/validate/" + manager,
		small: template(700), large: template(50_000),
	}
}

// template returns an AdmissionReview of an update, with that many bytes in each of its two
// objects, and NAME in place of their name.
func template(size int) string {
	object := func(generation int) string {
		return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"NAME",`+
			`"namespace":"default","uid":"0f0f",`+
			`"resourceVersion":"%d","generation":%d,"labels":{"app":"a","operator.kyma-project.io/managed-by":"kyma"},`+
			`"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"apps/v1",`+
			`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]},`+
			`"spec":{"replicas":%d,"template":{"metadata":{"annotations":{"text":"%s"}},`+
			`"spec":{"containers":[{"name":"a","image":"a:%d"}]}}},`+
			`"status":{"replicas":1}}`, generation, generation, generation, strings.Repeat("x", size), generation)
	}
	return `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1",` +
		`"resource":"deployments"},` +
		`"name":"NAME","namespace":"default","operation":"UPDATE","userInfo":{"username":"admin",` +
		`"groups":["system:authenticated"]},` +
		`"object":` + object(2) + `,"oldObject":` + object(1) +
		`,"dryRun":false,"options":{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1"}}}`
}

// review sends n reviews over all connections, some with a new name. It takes at least that long.
func (s *apiServer) review(n, fresh int, over time.Duration) {
	s.t.Helper()
	var (
		asked   atomic.Int64
		writers sync.WaitGroup
		began   = time.Now()
	)
	for range connections {
		writers.Go(func() {
			for asked.Add(1) <= int64(n) && !s.t.Failed() {
				s.ask(fresh)
			}
		})
	}
	writers.Wait()
	s.reviewed.Add(int64(n))
	<-time.After(over - time.Since(began))
}

func (s *apiServer) ask(fresh int) {
	serial := s.serial.Add(1)
	name, review := fmt.Sprintf("object-%d", serial%stable), s.small
	if serial%int64(fresh) == 0 {
		name = fmt.Sprintf("fresh-%d", serial)
	}
	if serial%largeOneIn == 0 {
		review = s.large
	}
	if err := lab.Ask(s.t.Context(), s.client, s.url, strings.ReplaceAll(review, "NAME", name)); err != nil {
		s.t.Errorf("review: %v", err)
	}
}
