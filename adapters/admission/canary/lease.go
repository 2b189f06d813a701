package canary

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Where Kubernetes mounts the credentials of a pod's service account.
const (
	DefaultTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // A path, no secret.
	DefaultCAFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

const (
	maxAnswer   = 64 << 10
	idleTimeout = 90 * time.Second
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// Lease is a [Writer] that patches one Lease (coordination.k8s.io/v1), which must exist. It needs the right to patch that one object,
// and no more. Make one with [NewLease].
type Lease struct {
	url       string
	token, ca string

	bundle []byte // that client trusts
	client *http.Client
}

// LeaseOptions are the optional settings of a [Lease].
type LeaseOptions struct {
	// Server is the URL of the API server. Default: that of the cluster that the process runs in, from KUBERNETES_SERVICE_HOST and
	// KUBERNETES_SERVICE_PORT.
	Server string
	// Getenv reads those. Default [os.Getenv].
	Getenv func(string) string
	// TokenFile and CAFile are the credentials. Both are read for every write, as they are rotated. Defaults [DefaultTokenFile] and
	// [DefaultCAFile].
	TokenFile, CAFile string
}

// NewLease returns a writer to the Lease of that name. It reads the CA bundle, and fails when it can not, or when there is no API
// server to be found.
func NewLease(name types.NamespacedName, opts LeaseOptions) (*Lease, error) {
	server, err := serverURL(opts)
	if err != nil {
		return nil, err
	}

	if name.Name == "" || name.Namespace == "" {
		return nil, fmt.Errorf("canary: lease is %q, want <namespace>/<name>", name)
	}

	lease := &Lease{
		url: server.JoinPath("apis/coordination.k8s.io/v1/namespaces", url.PathEscape(name.Namespace), "leases",
			url.PathEscape(name.Name)).String() + "?fieldManager=runtime-watcher-canary",
		token: cmp.Or(opts.TokenFile, DefaultTokenFile),
		ca:    cmp.Or(opts.CAFile, DefaultCAFile),
	}

	if err := lease.trust(); err != nil {
		return nil, err
	}

	return lease, nil
}

// Close closes the idle connection to the API server. Later writes make another.
func (l *Lease) Close() { l.client.CloseIdleConnections() }

// trust makes a client that trusts what the file of CAs holds now, unless there is one already.
func (l *Lease) trust() error {
	bundle, err := os.ReadFile(l.ca)
	if err != nil {
		return fmt.Errorf("canary: CA bundle of the API server: %w", err)
	}

	if l.client != nil && bytes.Equal(bundle, l.bundle) {
		return nil
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("canary: CA bundle of the API server: %s holds no certificate in PEM", l.ca)
	}

	if l.client != nil {
		l.client.CloseIdleConnections()
	}

	l.bundle, l.client = bundle, newClient(roots)

	return nil
}

func newClient(roots *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		MaxConnsPerHost:   1,
		IdleConnTimeout:   idleTimeout,
		// A connection that died silently would otherwise fail every write until the kernel gives it up.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
}

func serverURL(opts LeaseOptions) (*url.URL, error) {
	server, getenv := opts.Server, opts.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}

	if server == "" {
		host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("canary: no API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in a pod")
		}

		server = "https://" + net.JoinHostPort(host, port)
	}

	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("canary: API server is %q, want https://host:port", server)
	}

	return parsed, nil
}

// Write patches the Lease.
func (l *Lease) Write(ctx context.Context, nonce string) ([]string, error) {
	if err := l.trust(); err != nil {
		return nil, err
	}

	token, err := os.ReadFile(l.token)
	if err != nil {
		return nil, fmt.Errorf("canary: token: %w", err)
	}

	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{NonceAnnotation: nonce}},
		"spec":     map[string]any{"renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")},
	})
	if err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, l.url, bytes.NewReader(patch))
	if err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}

	request.Header.Set("Content-Type", "application/merge-patch+json")
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))

	return l.do(request)
}

func (l *Lease) do(request *http.Request) ([]string, error) {
	answer, err := l.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}
	defer answer.Body.Close() // The answer is known.

	body, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // What is missing of it only shortens a message.

	if answer.StatusCode != http.StatusOK {
		var status struct {
			Message string `json:"message"`
		}

		_ = json.Unmarshal(body, &status)

		return nil, fmt.Errorf("canary: PATCH %s: %s: %.300q", request.URL.Path, answer.Status, status.Message)
	}

	return warnings(answer.Header), nil
}

// warnings returns the texts of Warning headers (RFC 7234, section 5.5), as an API server sends them: 299 - "text".
func warnings(header http.Header) (texts []string) {
	for _, value := range header.Values("Warning") {
		_, rest, _ := strings.Cut(value, `"`)
		if text, _, ok := strings.Cut(rest, `"`); ok {
			texts = append(texts, text)
		}
	}

	return texts
}
