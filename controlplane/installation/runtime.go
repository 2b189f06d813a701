package installation

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// errInvalidRuntime means that a [Runtime] cannot get the agent. Nothing was changed there.
var errInvalidRuntime error = &reasons.Error{
	Text: "agent cannot be installed in runtime", Label: "invalid_runtime", Permanent: true,
}

const (
	// maxPullSecret is in bytes.
	maxPullSecret = 64 << 10
	// reservedID would get the answers to operators at a NATS server.
	reservedID = "operator"
)

// Runtime is a cluster that gets the agent, with the agent's material.
type Runtime struct {
	// ID must be the Common Name of the client certificate. An agent with another certificate would
	// send events for another runtime.
	ID core.RuntimeID
	// Client needs the rights of a cluster administrator and must not use a cache, like the clients
	// of client.New. Its scheme does not matter. Nil means that the runtime no longer exists, so
	// Uninstall has nothing to remove.
	Client client.Client
	// Secret contains ca.crt, tls.crt and tls.key, and webhook.crt and webhook.key for the webhook,
	// like Secret of certificates.RuntimeStatus. Without webhook.crt and webhook.key, the webhook
	// serves tls.crt. The API server of the runtime also trusts the CAs in ca.crt.
	Secret map[string][]byte
	// PullSecret is a .dockerconfigjson of at most 64 KiB, with which the pods pull the image, in
	// addition to [Options].ImagePullSecrets. Install copies it to a Secret named Name with the
	// suffix "-pull", which the administrator of the runtime can read. Uninstall removes the copy,
	// and so does Install when PullSecret is no longer set. Default: none.
	PullSecret []byte
	// ProxyCredentials are user:password for the proxy on the path to the control plane, which the
	// setting CONTROL_PLANE_PROXY in [Options].Settings names. They are a key in the Secret of the
	// agent, which the administrator of the runtime can read. A new value restarts nothing.
	// Default: none.
	ProxyCredentials []byte
	// Watches are the changes that the API server sends to the agent.
	Watches []watch.Watch
	// ControlPlane is the address <host>:<port> to which the agent sends. A new address restarts
	// the agents. Default: the address of the installer.
	ControlPlane string
	// Verify makes this call of Install apply all objects, as Install does once an hour.
	Verify bool
}

func (r *Runtime) hasServingPair() bool {
	return r.Secret[material.ServingCertificate] != nil || r.Secret[material.ServingKey] != nil
}

// purposes describes the purposes of the agent's certificates.
type purposes struct {
	host string // of the webhook, empty for an agent that watches
	nats bool   // The client certificate has a user of a NATS server.
}

var errNoClient = errors.New("want a client, have none")

// validate checks the material as the peers of the agent will: a mistake found there is a silent
// failure. Only an agent that serves a webhook needs a serving certificate, and only one over NATS
// a user.
func (r *Runtime) validate(needs purposes) error {
	if r.Client == nil {
		return errNoClient
	}
	if r.PullSecret != nil && !isPullSecret(r.PullSecret) {
		return fmt.Errorf("PullSecret: want JSON of at most %d bytes", maxPullSecret)
	}
	if r.ProxyCredentials != nil {
		if _, err := proxy.ParseCredentials(r.ProxyCredentials); err != nil {
			return fmt.Errorf("ProxyCredentials: %w", err)
		}
	}

	pair, err := r.parsePair(material.ClientCertificate, material.ClientKey)
	if err != nil {
		return err
	}
	bundle, err := keys.ParseBundle(r.Secret[material.CA])
	if err != nil { // The agent would end with it.
		return fmt.Errorf("%s of its Secret: %w", material.CA, err)
	}

	subject := pair.Leaf.Subject.CommonName
	if subject != string(r.ID) || r.ID == "" {
		return fmt.Errorf("its Secret has the certificate of %.80q", subject)
	}
	if needs.nats && r.ID == reservedID {
		return fmt.Errorf("this ID is reserved with %s=%s: choose another ID", settingTransport, transportNATS)
	}
	if needs.nats && len(pair.Leaf.DNSNames) == 0 {
		return errors.New(
			"the certificate in its Secret has no DNS name: want the DNS name of its user in the NATS server")
	}
	if needs.host == "" {
		return nil
	}
	return r.validateServing(needs.host, bundle)
}

func isPullSecret(text []byte) bool { return len(text) <= maxPullSecret && json.Valid(text) }

// validateServing verifies the serving certificate as the API server does.
func (r *Runtime) validateServing(host string, bundle keys.Bundle) error {
	certificate := material.ClientCertificate
	key := material.ClientKey
	if r.hasServingPair() {
		certificate = material.ServingCertificate
		key = material.ServingKey
	}
	pair, err := r.parsePair(certificate, key)
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
		intermediate, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		opts.Intermediates.AddCert(intermediate)
	}

	if _, err := pair.Leaf.Verify(opts); err != nil {
		return fmt.Errorf("API server would not trust %s of its Secret as %s: %w", certificate, host, err)
	}
	return nil
}

// usableBundle returns the CAs of the Secret for the webhook configuration, without the blocks that
// an API server cannot use. The agent logs these blocks, which stay in its Secret.
func (r *Runtime) usableBundle() ([]byte, error) {
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

func (r *Runtime) parsePair(certificate, key string) (tls.Certificate, error) {
	pair, err := keys.ParsePair(r.Secret[certificate], r.Secret[key])
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s of its Secret: %w", certificate, key, err)
	}
	return pair, nil
}
