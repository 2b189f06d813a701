package today

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// GatewayIdentity is the name of the ingress gateway in the mesh.
const GatewayIdentity = "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"

// Ingress simulates an ingress gateway of Istio and the sidecar of the operator. It follows the
// Gateway, its Secret, the VirtualServices and the AuthorizationPolicies of a control plane.
//
// It terminates TLS, requires client certificates, and answers as Envoy does: with 404 for a path
// without a route, and with 403 for a path that no policy allows. It forwards from 127.0.0.6, with
// an X-Forwarded-Client-Cert of two elements: one from the gateway, and one from the sidecar.
type Ingress struct {
	plane client.Client

	mu       sync.Mutex
	config   *tls.Config
	routes   []ingressRoute
	allowed  []string // patterns of paths; nil: all
	refused  string   // prefix of paths that no policy allows
	services map[string]string
}

// ingressRoute leads paths with a prefix to a service.
type ingressRoute struct{ prefix, service string }

// NewIngress returns an ingress that is not running.
func NewIngress(plane client.Client) *Ingress {
	return &Ingress{plane: plane, services: map[string]string{}}
}

// Lead routes requests for a service, as <host>:<port>, to an address of this machine.
func (i *Ingress) Lead(service, addr string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.services[service] = addr
}

// Refuse answers paths with a prefix as if no policy allowed them. With "", no path is refused.
func (i *Ingress) Refuse(prefix string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refused = prefix
}

// Run serves at an address until ctx ends.
func (i *Ingress) Run(ctx context.Context, addr string) error {
	inner, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}

	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}}
	proxy := &httputil.ReverseProxy{
		Transport:    &http.Transport{DialContext: dialer.DialContext},
		Rewrite:      func(*httputil.ProxyRequest) {},
		ErrorLog:     log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusServiceUnavailable) },
	}

	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { i.forward(proxy, w, r) }),
		ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{GetConfigForClient: i.tlsConfig, NextProtos: []string{"h2", "http/1.1"}},
	}

	go i.follow(ctx)
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()

	if err := server.ServeTLS(inner, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}

	return nil
}

func (i *Ingress) tlsConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.config == nil {
		return nil, errors.New("no certificate")
	}
	return i.config, nil
}

// forward answers as the gateway or the sidecar does, or leads a request to its service.
func (i *Ingress) forward(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	at := slices.IndexFunc(i.routes, func(route ingressRoute) bool { return strings.HasPrefix(r.URL.Path, route.prefix) })
	var addr string
	if at >= 0 {
		addr = i.services[i.routes[at].service]
	}

	allowed := i.allowed == nil || slices.ContainsFunc(i.allowed, func(p string) bool { return matches(p, r.URL.Path) })
	if i.refused != "" && strings.HasPrefix(r.URL.Path, i.refused) {
		allowed = false
	}

	i.mu.Unlock()
	switch {
	case at < 0:
		w.WriteHeader(http.StatusNotFound)
	case !allowed:
		http.Error(w, "RBAC: access denied", http.StatusForbidden)
	case addr == "":
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		r.Header.Set("X-Forwarded-Client-Cert", clientCert(r.TLS.PeerCertificates[0]))
		r.URL.Scheme = "http"
		r.URL.Host = addr
		proxy.ServeHTTP(w, r)
	}
}

// matches compares as Istio does: a trailing asterisk is a prefix.
func matches(pattern, path string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return pattern == path
}

// clientCert is the header as Envoy writes it: the gateway replaces the header of the client, and
// the sidecar appends an element.
func clientCert(c *x509.Certificate) string {
	header := strings.Join(append([]string{rig.ByGateway(c)}, c.DNSNames...), ";DNS=")
	return rig.BySidecar(header, GatewayIdentity)
}

// follow reads the objects of the control plane again and again.
func (i *Ingress) follow(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		config, configErr := i.readConfig(ctx)
		routes, routesErr := i.readRoutes(ctx)
		allowed, allowedErr := i.readAllowed(ctx)
		if errors.Join(configErr, routesErr, allowedErr) == nil {
			i.mu.Lock()
			i.config = config
			i.routes = routes
			i.allowed = allowed
			i.mu.Unlock()
		}
	}, 200*time.Millisecond)
}

// istioSpec has what the ingress knows of a Gateway, a VirtualService or an AuthorizationPolicy.
type istioSpec struct {
	Servers []struct {
		TLS struct{ Mode, CredentialName string }
	}
	HTTP []struct {
		Match []struct {
			URI struct{ Prefix string }
		}
		Route []struct {
			Destination struct {
				Host string
				Port struct{ Number int }
			}
		}
	}
	Rules []struct {
		To []struct {
			Operation struct{ Paths []string }
		}
	}
}

func (i *Ingress) list(ctx context.Context, group, kind string) ([]istioSpec, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta1", Kind: kind + "List"})
	err := i.plane.List(ctx, list)
	specs := make([]istioSpec, len(list.Items))

	for n, item := range list.Items {
		text, _ := json.Marshal(item.Object["spec"])
		err = errors.Join(err, json.Unmarshal(text, &specs[n])) //nolint:musttag // Cases of names do not matter.
	}

	return specs, err
}

// readConfig uses the Secret that the first server for mutual TLS names, in the namespace of the
// gateway's pods.
func (i *Ingress) readConfig(ctx context.Context) (*tls.Config, error) {
	gateways, err := i.list(ctx, "networking.istio.io", "Gateway")
	if err != nil {
		return nil, err
	}

	key := types.NamespacedName{Namespace: GatewayNamespace}
	for _, gateway := range gateways {
		for _, server := range gateway.Servers {
			if server.TLS.Mode == "MUTUAL" && key.Name == "" {
				key.Name = server.TLS.CredentialName
			}
		}
	}

	var secret corev1.Secret
	if err := i.plane.Get(ctx, key, &secret); err != nil {
		return nil, err
	}

	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])

	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}, err
}

func (i *Ingress) readRoutes(ctx context.Context) (routes []ingressRoute, err error) {
	services, err := i.list(ctx, "networking.istio.io", "VirtualService")
	for _, service := range services {
		for _, rule := range service.HTTP {
			for _, match := range rule.Match {
				to := rule.Route[0].Destination // A rule of the tests has one.
				routes = append(routes, ingressRoute{match.URI.Prefix, fmt.Sprintf("%s:%d", to.Host, to.Port.Number)})
			}
		}
	}
	return routes, err
}

// readAllowed returns the paths of all policies that allow, nil without any.
func (i *Ingress) readAllowed(ctx context.Context) (allowed []string, err error) {
	policies, err := i.list(ctx, "security.istio.io", "AuthorizationPolicy")
	for _, policy := range policies {
		for _, rule := range policy.Rules {
			for _, to := range rule.To {
				allowed = append(allowed, to.Operation.Paths...)
			}
		}
	}
	return allowed, err
}

// Event is an event that a [Listener] has received.
type Event struct {
	Runtime string `json:"-"`
	Path    string `json:"-"`
	Body    string `json:"-"`
	Watched Object `json:"watched"`
}

// Object names a watched object, as it is in an event.
type Object struct {
	Namespace string `json:"Namespace"`
	Name      string `json:"Name"`
}

// Listener accepts events of contract v2 as an operator of today does: the runtime is the Common
// Name of the certificate in the header.
type Listener struct {
	// Arrived is called for each event. It may be called concurrently.
	Arrived func(e Event)

	mu  sync.Mutex
	all []Event
}

var certificateInHeader = regexp.MustCompile(`Cert="([^"]*)"`)

// ServeHTTP implements [http.Handler].
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event Event
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	event.Runtime, event.Path, event.Body = runtimeOf(r), r.URL.Path, string(body)
	l.mu.Lock()
	l.all = append(l.all, event)
	l.mu.Unlock()
	if l.Arrived != nil {
		l.Arrived(event)
	}

	w.WriteHeader(http.StatusOK)
}

// Events returns all events so far.
func (l *Listener) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Event{}, l.all...)
}

func runtimeOf(r *http.Request) string {
	match := certificateInHeader.FindStringSubmatch(r.Header.Get("X-Forwarded-Client-Cert"))
	if match == nil {
		return ""
	}

	text, _ := url.QueryUnescape(match[1])
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return ""
	}

	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}

	return certificate.Subject.CommonName
}
