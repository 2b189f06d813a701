// Command skrwebhook simulates the agent of kyma-project/runtime-watcher. It has the same variables
// and answers, and sends events on contract v2 within the request of the API server.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/validate/", validate)
	server := &http.Server{Addr: ":" + os.Getenv("WEBHOOK_PORT"), Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY")))
	os.Exit(1)
}

func validate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		return
	}

	subject := decode(review.Request.Object)
	before := decode(review.Request.OldObject)
	if review.Request.Operation != admissionv1.Update || !reflect.DeepEqual(subject.Object["spec"], before.Object["spec"]) {
		if review.Request.Operation == admissionv1.Delete {
			subject = before
		}
		if err := send(strings.TrimPrefix(r.URL.Path, "/validate/"), subject); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}

	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(w).Encode(review)
}

func decode(raw runtime.RawExtension) (object unstructured.Unstructured) {
	_ = json.Unmarshal(raw.Raw, &object.Object) // There may be none.
	return object
}

// send tries three times, with files that are read anew each time.
func send(manager string, watched unstructured.Unstructured) (err error) {
	kind := watched.GroupVersionKind()
	body, err := json.Marshal(map[string]any{
		"watched":    map[string]string{"Namespace": watched.GetNamespace(), "Name": watched.GetName()},
		"watchedGvk": map[string]string{"group": kind.Group, "version": kind.Version, "kind": kind.Kind},
	})

	for range 3 {
		if err = post(manager, body); err == nil {
			return nil
		}
	}
	return err
}

func post(manager string, body []byte) error {
	pair, err := tls.LoadX509KeyPair(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY"))
	if err != nil {
		return err
	}

	bundle, err := os.ReadFile(os.Getenv("CA_CERT"))
	if err != nil {
		return err
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}
	defer transport.CloseIdleConnections()

	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	url := fmt.Sprintf("https://%s/%s/%s/event", os.Getenv("KCP_ADDR"), os.Getenv("KCP_CONTRACT"), manager)
	answer, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, text)
	}

	return nil
}
