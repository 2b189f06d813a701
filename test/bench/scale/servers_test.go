package scale

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// servers are the API servers of all runtimes: a host name for each.
type servers struct {
	latency  atomic.Int64
	requests atomic.Int64

	mu      sync.Mutex
	objects map[string]stored         // by host and path
	bodies  map[digest]map[string]any // equal ones of all runtimes are kept once
}

type digest [16]byte

type stored struct {
	body       digest
	generation int
}

// serve prints the address of the API servers. The answer to each question is the number of
// requests so far. A question is a new latency, or "".
func serve(ctx context.Context) error {
	paths := kit.Settings[keys.Paths]()
	s := &servers{objects: map[string]stored{}, bodies: map[digest]map[string]any{}}
	api, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(api.Addr())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(s.api)}
	go func() { _ = server.ServeTLS(api, paths.Certificate, paths.Key) }() // It ends with the process.
	return kit.Answer(func(question string) any {
		if latency, err := time.ParseDuration(question); err == nil {
			s.latency.Store(int64(latency))
		}
		return s.requests.Load()
	})
}

func (s *servers) api(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	<-time.After(time.Duration(s.latency.Load()))
	status, answer := s.answer(r, body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *servers) answer(r *http.Request, body []byte) (status int, answer map[string]any) {
	key := r.Host + r.URL.Path
	switch {
	case r.Method == http.MethodGet && strings.HasSuffix(key, "/endpointslices"):
		return http.StatusOK, endpoints()
	case r.Method == http.MethodGet:
		return s.get(key)
	case r.Method == http.MethodPatch:
		return s.apply(key, body)
	case r.Method == http.MethodPost:
		var object struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(body, &object); err != nil {
			return http.StatusBadRequest, failure(http.StatusBadRequest, "BadRequest")
		}
		return s.apply(path.Join(key, object.Metadata.Name), body)
	default:
		return http.StatusMethodNotAllowed, failure(http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func (s *servers) apply(key string, body []byte) (int, map[string]any) {
	sum := sha256.Sum256(body)
	hash := digest(sum[:16])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bodies[hash] == nil {
		var object map[string]any
		if err := json.Unmarshal(body, &object); err != nil {
			return http.StatusBadRequest, failure(http.StatusBadRequest, err.Error())
		}
		s.bodies[hash] = object
	}
	if known := s.objects[key]; known.body != hash {
		s.objects[key] = stored{hash, known.generation + 1}
	}
	return http.StatusOK, s.object(key)
}

func (s *servers) get(key string) (int, map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.objects[key]; !known {
		return http.StatusNotFound, failure(http.StatusNotFound, "NotFound")
	}
	return http.StatusOK, s.object(key)
}

// object returns an object with the fields that an API server and its controllers set.
func (s *servers) object(key string) map[string]any {
	stored := s.objects[key]
	uid := sha256.Sum256([]byte(key))
	object, metadata := map[string]any{}, map[string]any{}
	maps.Copy(object, s.bodies[stored.body])
	maps.Copy(metadata, object["metadata"].(map[string]any))
	metadata["uid"], metadata["generation"] = hex.EncodeToString(uid[:16]), stored.generation
	metadata["resourceVersion"] = strconv.Itoa(stored.generation)
	object["metadata"] = metadata
	if object["kind"] == "Deployment" {
		object["status"] = map[string]any{
			"observedGeneration": stored.generation, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
		}
	}
	return object
}

func endpoints() map[string]any {
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": map[string]any{"resourceVersion": "1"},
		"items": []any{map[string]any{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": map[string]any{"name": "a"},
			"addressType": "IPv4", "endpoints": []any{map[string]any{"addresses": []any{"192.0.2.1"}}},
		}},
	}
}

func failure(code int, reason string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason,
	}
}

// dialToFill is longer than a connection to this machine takes.
const dialToFill = 500 * time.Millisecond

// blackHole returns an address of this machine that answers no SYN, as that of a cluster that is
// gone: the queue of its listener is full.
func blackHole(t *testing.T) string {
	t.Helper()
	fd := lab.Must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	bound := lab.Must(syscall.Getsockname(fd))
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	for full := false; !full; {
		connected, err := (&net.Dialer{Timeout: dialToFill}).DialContext(t.Context(), "tcp", address)
		if full = err != nil; !full {
			t.Cleanup(func() { _ = connected.Close() })
		}
	}
	return address
}

// issuer issues 20,000 certificates in a minute, which takes cert-manager half an hour. All are of
// one CA.
type issuer struct {
	client.Client

	ca *testpki.CA
}

func startIssuer(t *testing.T, config *rest.Config) {
	t.Helper()
	mgr := lab.NewManager(t, config, newScheme())
	i := &issuer{Client: mgr.GetClient(), ca: lab.NewPKI(t).CA}
	if err := ctrl.NewControllerManagedBy(mgr).For(&certv1.Certificate{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(i); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "issuer", mgr.Start)
}

// Reconcile stores the Secret of a Certificate. Without controllers that sign, no CA needs its key.
func (i *issuer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	certificate := &certv1.Certificate{}
	if err := i.Get(ctx, request.NamespacedName, certificate); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	spec := &certificate.Spec
	opts := testpki.Options{DNSNames: spec.DNSNames, NotAfter: time.Now().Add(spec.Duration.Duration), Usages: []x509.ExtKeyUsage{}}
	for usage, extended := range map[certv1.KeyUsage]x509.ExtKeyUsage{
		certv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	} {
		if slices.Contains(spec.Usages, usage) {
			opts.Usages = append(opts.Usages, extended)
		}
	}
	leaf, err := i.ca.Client(spec.CommonName, opts)
	if err != nil {
		return reconcile.Result{}, err
	}
	files := testpki.Files(leaf, i.ca)
	if spec.IsCA {
		files[corev1.TLSCertKey] = i.ca.PEM
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: spec.SecretName, Labels: spec.SecretTemplate.Labels},
		Type:       corev1.SecretTypeTLS, Data: files,
	}
	if err := i.Create(ctx, secret); !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}
