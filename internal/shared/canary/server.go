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

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

// The files in which Kubernetes mounts the credentials of a service account.
const (
	DefaultTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // A path, not a secret.
	DefaultCAFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// maxAnswer bounds an answer, in bytes. Only the message of an error is read from an answer.
const maxAnswer = 64 << 10

// LeaseOptions are the optional settings of a [Lease]. The zero value is the documented default.
type LeaseOptions struct {
	// Server is the https URL of the API server, or several URLs with commas between them. Each
	// write then goes to all of them, because a load balancer may route each write to the same API
	// server, and so hide that another server calls no agent. Default: the cluster of the process,
	// from KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
	Server string
	// TokenFile and CAFile are the credentials. Both files are read before each write, because the
	// credentials rotate. Default: the files of the pod's service account.
	TokenFile, CAFile string
}

// apiServer sends requests to the API server of the runtime, with the rights of the agent.
type apiServer struct {
	token, ca string // files
	client    *http.Client
}

// newServer also returns the URLs of the API servers, at least one. It reads the CA bundle.
func newServer(opts LeaseOptions) (apiServer, []*url.URL, error) {
	addresses, err := serverURLs(opts)
	if err != nil {
		return apiServer{}, nil, err
	}

	server := apiServer{
		token: cmp.Or(opts.TokenFile, DefaultTokenFile),
		ca:    cmp.Or(opts.CAFile, DefaultCAFile),
	}
	server.client = server.newClient()
	_, err = server.readRoots()

	return server, addresses, err
}

// readRoots reads the CA bundle.
func (s *apiServer) readRoots() (*x509.CertPool, error) {
	bundle, err := os.ReadFile(s.ca)
	if err != nil {
		return nil, fmt.Errorf("canary: CA bundle of the API server: %w", err)
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("canary: CA bundle of the API server: %s holds no certificate in PEM", s.ca)
	}

	return roots, nil
}

// newClient returns a client with a connection for each write, which may reach another API server
// of the cluster. With a single connection, a canary would never notice that other API servers call
// no agent.
func (s *apiServer) newClient() *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		roots, err := s.readRoots()
		if err != nil {
			return nil, err
		}

		dialer := tls.Dialer{
			// A write that gives up leaves its dial running, and later writes wait for that dial.
			NetDialer: &net.Dialer{Timeout: writeTimeout},
			Config:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		}

		return dialer.DialContext(ctx, network, address)
	}

	return &http.Client{Transport: &http.Transport{DialTLSContext: dial, DisableKeepAlives: true, MaxConnsPerHost: 1}}
}

func serverURLs(opts LeaseOptions) (all []*url.URL, err error) {
	for server := range strings.SplitSeq(opts.Server, ",") {
		parsed, err := serverURL(strings.TrimSpace(server))
		if err != nil {
			return nil, err
		}

		all = append(all, parsed)
	}
	return all, nil
}

func serverURL(server string) (*url.URL, error) {
	if server == "" {
		host := os.Getenv("KUBERNETES_SERVICE_HOST")
		port := os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("canary: no API server: " +
				"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set. " +
				"A pod has these variables; outside a pod, set the API server")
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

// The media types of a body.
const (
	typeJSON       = "application/json"
	typeMergePatch = "application/merge-patch+json" // RFC 7386
	typeApply      = "application/apply-patch+yaml" // Server-side apply. JSON is YAML.
)

// call is a request to an API server. Without a body it has no media type.
type call struct {
	method, target string
	media          string
	body           []byte
}

// doCall sends a request with the token. If the status is 200 or 201, it returns up to most bytes
// of the answer, and its header. It reads both files, and blocks until the API server answers or
// ctx ends. The error for another status has a method StatusCode() int. The error for a file is an
// [io/fs.PathError].
func (s *apiServer) doCall(ctx context.Context, c call, most int64) ([]byte, http.Header, error) {
	answer, err := s.sendCall(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close() // Its error does not change the answer.

	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return nil, answer.Header, fmt.Errorf("canary: the answer is cut off: %w", reasons.Plain(err))
	}

	return text, answer.Header, nil
}

// sendCall sends a request with the token, and returns an answer of status 200 or 201. The caller
// must close its body.
func (s *apiServer) sendCall(ctx context.Context, c call) (*http.Response, error) {
	token, err := os.ReadFile(s.token)
	if err != nil {
		return nil, fmt.Errorf("canary: token: %w", err)
	}

	request, err := http.NewRequestWithContext(ctx, c.method, c.target, bytes.NewReader(c.body))
	if err != nil {
		return nil, fmt.Errorf("canary: %w", err)
	}

	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if c.body != nil {
		request.Header.Set("Content-Type", c.media)
	}

	answer, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("canary: %w", reasons.Plain(err))
	}
	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusCreated {
		return answer, nil
	}

	defer answer.Body.Close() // Its error does not change the answer.

	// The body of an error is a metav1.Status. Without one, the message is empty.
	var status struct {
		Message string `json:"message"`
	}
	_ = json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&status)
	return nil, &refusal{request, answer, status.Message}
}

type refusal struct {
	request *http.Request
	answer  *http.Response
	message string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("canary: %s %s: %s: %.300q", r.request.Method, r.request.URL.Path, r.answer.Status, r.message)
}

func (r *refusal) StatusCode() int { return r.answer.StatusCode }
