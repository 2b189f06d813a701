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
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/connect"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// The files in which Kubernetes mounts the credentials of a service account.
const (
	DefaultTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // A path, no secret.
	DefaultCAFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// maxAnswer is in bytes. Only the message of an error is read from an answer.
const maxAnswer = 64 << 10

// Lease patches one existing Lease (coordination.k8s.io/v1). It needs the
// permission to patch this object only. Create one with [NewLease]. It is not safe for concurrent
// use.
type Lease struct {
	// url has the path of the Lease and the name of the field manager.
	url       string
	token, ca string
	client    *http.Client
}

// LeaseOptions are the optional settings of a [Lease]. The zero value is the documented default.
type LeaseOptions struct {
	// Server is the https URL of the API server. Default: the cluster of the process, from
	// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
	Server string
	// TokenFile and CAFile are the credentials. Both are read before each write, because they
	// rotate. Default: the files of the pod's service account.
	TokenFile, CAFile string
}

// NewLease returns a writer for the Lease of that name. It reads the CA bundle. It fails if that is
// invalid, or if there is no address of an API server.
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
	lease.client = lease.newClient()
	_, err = lease.roots()
	return lease, err
}

func (l *Lease) roots() (*x509.CertPool, error) {
	bundle, err := os.ReadFile(l.ca)
	if err != nil {
		return nil, fmt.Errorf("canary: CA bundle of the API server: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("canary: CA bundle of the API server: %s holds no certificate in PEM", l.ca)
	}
	return roots, nil
}

// newClient returns a client with a connection for each write, which may reach another API server
// of the cluster. On one connection, a canary would never notice that the others call no agent.
func (l *Lease) newClient() *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		roots, err := l.roots()
		if err != nil {
			return nil, err
		}
		dialer := tls.Dialer{
			// A write that gives up leaves its dial behind, for which the next ones wait.
			NetDialer: &net.Dialer{Timeout: writeTimeout},
			Config:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		}
		return dialer.DialContext(ctx, network, address)
	}
	return &http.Client{Transport: &http.Transport{DialTLSContext: dial, DisableKeepAlives: true, MaxConnsPerHost: 1}}
}

func serverURL(opts LeaseOptions) (*url.URL, error) {
	server := opts.Server
	if server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("canary: no API server: " +
				"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in a pod")
		}

		server = "https://" + net.JoinHostPort(host, port)
	}

	parsed, err := url.Parse(server)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("canary: API server is %q, want https://host:port", server)
	}
	host, err := connect.ParseHost(parsed.Hostname())
	if err != nil {
		return nil, fmt.Errorf("canary: API server: %w", err)
	}
	parsed.Host = net.JoinHostPort(host, cmp.Or(parsed.Port(), "443"))
	return parsed, nil
}

// Write patches the nonce and the time of renewal. It is a [Write]. It reads both files, and
// blocks until the API server answers or ctx ends. The error for an answer other than 200 has a
// method StatusCode() int. The error for a file is an [io/fs.PathError].
func (l *Lease) Write(ctx context.Context, nonce string) ([]string, error) {
	return l.write(ctx, l.url, nonce)
}

func (l *Lease) write(ctx context.Context, target, nonce string) ([]string, error) {
	token, err := os.ReadFile(l.token)
	if err != nil {
		return nil, fmt.Errorf("canary: token: %w", err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"renewTime":%q}}`,
		nonceAnnotation, nonce, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, target, bytes.NewReader(patch))
	if err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}
	request.Header.Set("Content-Type", "application/merge-patch+json") // RFC 7386.
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return l.do(request)
}

// Check patches the Lease as a dry run, which changes nothing. It reports whether the API server
// called an agent for it, and fails if the Lease cannot be written. It blocks as Write does.
func (l *Lease) Check(ctx context.Context) (called bool, err error) {
	nonce := newNonce()
	warnings, err := l.write(ctx, l.url+"&dryRun=All", nonce)
	return slices.Contains(warnings, warningPrefix+nonce), err
}

func (l *Lease) do(request *http.Request) ([]string, error) {
	answer, err := l.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("canary: %w", reasons.Plain(err))
	}
	defer answer.Body.Close()                                     // Its error does not change the answer.
	body, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // An error only shortens the message.
	if answer.StatusCode != http.StatusOK {
		// The body of an error is a metav1.Status.
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(body, &status)
		return nil, &refusal{request.URL.Path, answer, status.Message}
	}
	return warnings(answer.Header), nil
}

type refusal struct {
	path    string
	answer  *http.Response
	message string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("canary: PATCH %s: %s: %.300q", r.path, r.answer.Status, r.message)
}

func (r *refusal) StatusCode() int { return r.answer.StatusCode }

// warnings returns the texts of the Warning headers (RFC 7234, section 5.5). API servers send them
// as: 299 - "text".
func warnings(header http.Header) (texts []string) {
	for _, value := range header.Values("Warning") {
		_, rest, _ := strings.Cut(value, `"`)
		if text, _, ok := strings.Cut(rest, `"`); ok {
			texts = append(texts, text)
		}
	}
	return texts
}
