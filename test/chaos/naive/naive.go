// Package naive forwards events as programs of this kind do that are deployed today: from inside admission, three tries, and
// then it forgets. It exists so that the chaos suite is known to be able to fail.
package naive

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

const (
	tries   = 3
	timeout = 2 * time.Second
)

// Run serves the webhook until it is killed. Its settings are in the environment.
func Run(ctx context.Context) error {
	material, err := httpmtls.NewFiles(httpmtls.Paths{
		CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY"),
	}, httpmtls.FilesOptions{})
	if err != nil {
		return err
	}

	config, err := httpmtls.ClientTLSConfig(material, "127.0.0.1")
	if err != nil {
		return err
	}

	f := &forwarder{
		address: os.Getenv("KCP_ADDR"),
		client:  &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: timeout},
	}
	f.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	server := &http.Server{
		Addr: "127.0.0.1:" + os.Getenv("WEBHOOK_PORT"), Handler: f, ReadHeaderTimeout: timeout,
		TLSConfig:   &tls.Config{MinVersion: tls.VersionTLS13},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}

	return server.ListenAndServeTLS(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY"))
}

type forwarder struct {
	address string
	client  *http.Client
	log     *slog.Logger
}

// ServeHTTP answers a review when the event is sent or given up.
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview

	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "want an AdmissionReview", http.StatusBadRequest)

		return
	}

	if matters(review.Request) {
		f.forward(r.Context(), core.Manager(path.Base(r.URL.Path)), review.Request)
	}

	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // The API server goes on without.
}

// matters compares the specs, as the agent's filter does.
func matters(request *admissionv1.AdmissionRequest) bool {
	if request.DryRun != nil && *request.DryRun {
		return false
	}

	return request.Operation != admissionv1.Update || !bytes.Equal(spec(request.OldObject.Raw), spec(request.Object.Raw))
}

func spec(object []byte) []byte {
	var u unstructured.Unstructured
	if json.Unmarshal(object, &u.Object) != nil {
		return nil
	}

	text, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return nil
	}

	return text
}

func (f *forwarder) forward(ctx context.Context, manager core.Manager, request *admissionv1.AdmissionRequest) {
	batch := core.NewBatch(core.WatchEvent{
		Watched: types.NamespacedName{Namespace: request.Namespace, Name: request.Name},
		WatchedGVK: schema.GroupVersionKind{
			Group: request.Kind.Group, Version: request.Kind.Version, Kind: request.Kind.Kind,
		},
	})

	body, err := contract.V2.Encode(&batch)
	if err != nil {
		f.log.ErrorContext(ctx, "event not encoded", "error", err)

		return
	}

	var failures []error

	for range tries {
		if err = f.post(ctx, manager, body.Body); err == nil {
			return
		}

		failures = append(failures, err)
	}

	f.log.ErrorContext(ctx, "event forgotten", "error", errors.Join(failures...))
}

func (f *forwarder) post(ctx context.Context, manager core.Manager, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+f.address+contract.V2.Path(manager), bytes.NewReader(body))
	if err != nil {
		return err
	}

	request.Header.Set("Content-Type", contract.V2.ContentType())

	answer, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close() // Nothing of it is needed.

	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", answer.Status)
	}

	return nil
}
