package installation

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// errInvalidRuntime means that a [Runtime] cannot get the agent. Nothing was changed there.
var errInvalidRuntime error = &reasons.Error{
	Text: "agent cannot be installed in runtime", Label: "invalid_runtime", Permanent: true,
}

// maxPullSecret is in bytes.
const maxPullSecret = 64 << 10

// Runtime is a cluster that gets the agent, and the agent's material.
type Runtime struct {
	// ID must be the Common Name of the client certificate. The agent of another certificate would
	// speak for another runtime.
	ID core.RuntimeID
	// Client needs the rights of a cluster administrator and no cache, as client.New makes it. Its
	// scheme does not matter. Nil means that the runtime is gone, so there is nothing to
	// uninstall.
	Client client.Client
	// Secret has ca.crt, tls.crt and tls.key, and webhook.crt and webhook.key for the webhook, as
	// certificates.RuntimeStatus has them. Without the last two the webhook serves tls.crt. The
	// API server of the runtime trusts the CAs in ca.crt, too.
	Secret map[string][]byte
	// PullSecret is a .dockerconfigjson of at most 64 KiB, with which the pods pull the image,
	// beside [Options.ImagePullSecrets]. Install copies it to a Secret named Name with the suffix
	// "-pull", which the administrator of the runtime can read. Uninstall removes the copy,
	// and so does Install when there is no PullSecret any more. Default: none.
	PullSecret []byte
	// Watches are the changes that the API server sends to the agent.
	Watches []watch.Watch
	// ControlPlane is the address that the agent sends to, <host>:<port>. A new one restarts the
	// agents. Default: that of the installer.
	ControlPlane string
	// Verify makes this call of Install apply all objects, as one after an hour does.
	Verify bool
}

func (r *Runtime) hasServingPair() bool {
	return r.Secret[material.ServingCertificate] != nil || r.Secret[material.ServingKey] != nil
}

// validate checks the material as the peers of the agent will: a mistake found there is a silent
// failure. Only an agent that serves a webhook needs a serving certificate, and only one over NATS
// a user.
func (r *Runtime) validate(host string, serves, user bool) error {
	if r.Client == nil {
		return errors.New("want a client, have none")
	}
	if len(r.PullSecret) > maxPullSecret || r.PullSecret != nil && !json.Valid(r.PullSecret) {
		return fmt.Errorf("PullSecret: want JSON of at most %d bytes", maxPullSecret)
	}
	pair, err := r.pair(material.ClientCertificate, material.ClientKey)
	if err != nil {
		return err
	}
	bundle, err := keys.ParseBundle(r.Secret[material.CA])
	if err != nil { // The agent would end with it.
		return fmt.Errorf("%s of its Secret: %w", material.CA, err)
	}

	switch have := pair.Leaf.Subject.CommonName; {
	case have != string(r.ID) || r.ID == "":
		return fmt.Errorf("its Secret has the certificate of %.80q", have)
	case user && r.ID == reservedID:
		return fmt.Errorf("want another ID with %s=%s, which reserves this one", settingTransport, transportNATS)
	case user && len(pair.Leaf.DNSNames) == 0:
		return errors.New("the certificate in its Secret has no DNS name, want the one of its user at the NATS server")
	case serves:
		return r.validateServing(host, bundle)
	default:
		return nil
	}
}

// validateServing verifies the serving certificate as the API server does.
func (r *Runtime) validateServing(host string, bundle keys.Bundle) error {
	certificate, key := material.ClientCertificate, material.ClientKey
	if r.hasServingPair() {
		certificate, key = material.ServingCertificate, material.ServingKey
	}
	pair, err := r.pair(certificate, key)
	if err != nil {
		return err
	}
	opts := x509.VerifyOptions{
		DNSName: host, Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, ca := range bundle.Certificates {
		opts.Roots.AddCert(ca)
	}
	for _, der := range pair.Certificate[1:] {
		if intermediate, err := x509.ParseCertificate(der); err == nil {
			opts.Intermediates.AddCert(intermediate)
		}
	}
	if _, err := pair.Leaf.Verify(opts); err != nil {
		return fmt.Errorf("API server would not trust %s of its Secret as %s: %w", certificate, host, err)
	}
	return nil
}

// bundle returns the CAs of the Secret for the webhook configuration, without the blocks that an
// API server cannot use. The agent logs these blocks, which stay in its Secret.
func (r *Runtime) bundle() ([]byte, error) {
	text := r.Secret[material.CA]
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("%s of its Secret: %w", material.CA, err)
	}
	if len(bundle.Skipped) > 0 {
		return bundle.PEM(), nil
	}
	return text, nil
}

func (r *Runtime) pair(certificate, key string) (tls.Certificate, error) {
	pair, err := keys.ParsePair(r.Secret[certificate], r.Secret[key])
	return pair, option.Unless(err == nil, "%s and %s of its Secret: %w", certificate, key, err)
}

// secret has the keys that the agent reads. The serving pair is optional.
func (i *Installer) secret(r *Runtime) *unstructured.Unstructured {
	data := make(map[string][]byte)
	for _, key := range []string{
		material.CA, material.ClientCertificate, material.ClientKey, material.ServingCertificate, material.ServingKey,
	} {
		if value, has := r.Secret[key]; has {
			data[key] = value
		}
	}
	return i.secretOf(i.opts.secretName(), corev1.SecretTypeTLS, data)
}

func (i *Installer) pullSecret(r *Runtime) *unstructured.Unstructured {
	return i.secretOf(i.pullSecretName(), corev1.SecretTypeDockerConfigJson,
		map[string][]byte{corev1.DockerConfigJsonKey: r.PullSecret})
}

// annotationPullSecret is on the ConfigMap of a runtime with a copy of a pull secret.
const annotationPullSecret = "pull-secret"

// formerPullSecret takes the ConfigMap of a runtime, nil if there is none.
func (i *Installer) formerPullSecret(live *unstructured.Unstructured) []*unstructured.Unstructured {
	if live == nil || live.GetAnnotations()[i.key(annotationPullSecret)] == "" {
		return nil
	}
	return []*unstructured.Unstructured{i.pullSecret(&Runtime{})}
}

func (i *Installer) pullSecretName() string { return i.opts.Name + "-pull" }

func (i *Installer) secretOf(name string, kind corev1.SecretType, data map[string][]byte) *unstructured.Unstructured {
	return i.finishedOf(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: i.opts.Namespace, Name: name, Labels: i.opts.labels()},
		Type:       kind,
		Data:       data,
	})
}
