// Command skrwebhook stands in for the agent of kyma-project/runtime-watcher: the same variables, the
// same answers, and events on contract v2 within the request of the API server.
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
)

type metadata struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       any      `json:"spec"`
}

type review struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Request    struct {
		UID       string `json:"uid"`
		Operation string `json:"operation"`
		Object    object `json:"object"`
		OldObject object `json:"oldObject"`
	} `json:"request"`
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/validate/", validate)
	server := &http.Server{Addr: ":" + os.Getenv("WEBHOOK_PORT"), Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY")))
	os.Exit(1)
}

func validate(w http.ResponseWriter, r *http.Request) {
	var asked review
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return
	}
	subject := asked.Request.Object
	if asked.Request.Operation == "DELETE" {
		subject = asked.Request.OldObject
	}
	if asked.Request.Operation != "UPDATE" ||
		!reflect.DeepEqual(asked.Request.Object.Spec, asked.Request.OldObject.Spec) {
		if err := send(strings.TrimPrefix(r.URL.Path, "/validate/"), subject); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": asked.APIVersion, "kind": asked.Kind,
		"response": map[string]any{"uid": asked.Request.UID, "allowed": true},
	})
}

// send tries three times, with files that are read anew each time.
func send(manager string, watched object) (err error) {
	group, version, found := strings.Cut(watched.APIVersion, "/")
	if !found {
		group, version = "", watched.APIVersion
	}
	body, err := json.Marshal(map[string]any{
		"watched":    map[string]string{"Namespace": watched.Metadata.Namespace, "Name": watched.Metadata.Name},
		"watchedGvk": map[string]string{"group": group, "version": version, "kind": watched.Kind},
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
