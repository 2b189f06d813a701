package agent

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// intended is the webhook configuration that an agent is to have. The keeper of the configuration
// has one in its goroutine. [WebhookProblem] makes another one for a dry run.
type intended struct {
	// build returns the configuration for a CA bundle.
	build func(bundle []byte) (*webhookConfiguration, error)
	ca    string // file
	// serving contains the certificate that the webhook serves, and host is the name that it needs.
	serving keys.Source
	host    string
	// mark is the annotation with the owner.
	mark, owner string
	// conditions is the finding of [intended.noteConditions].
	conditions conditionsOfServer
}

// conditionsOfServer is the treatment of match conditions by an API server.
type conditionsOfServer int

const (
	conditionsUnknown conditionsOfServer = iota
	conditionsKept
	// conditionsDropped means that the API server is older than Kubernetes 1.28.
	conditionsDropped
)

func newIntended(opts Options, serving keys.Source, ca string) intended {
	own := opts.Webhook.Own
	mark := own.mark()
	return intended{
		build: func(bundle []byte) (*webhookConfiguration, error) {
			endpoint := admission.Endpoint{
				URL: own.URL, Service: own.Service, ServicePort: own.ServicePort, CABundle: bundle,
			}
			made, err := admission.WebhookConfiguration(opts.Webhook.Configuration, endpoint, own.Watches,
				admission.ConfigurationOptions{
					Canary: opts.Canary.Lease, OwnerAnnotation: opts.OwnerAnnotation,
					WebhookDomain: own.WebhookDomain, ExcludedNamespaces: own.ExcludedNamespaces,
				})
			if err != nil {
				return nil, err
			}

			made.Annotations[mark] = own.owner()
			return made, nil
		},
		ca: cmp.Or(own.CA, ca), serving: serving, host: own.host(), mark: mark, owner: own.owner(),
	}
}

// buildConfiguration reads the CA bundle. It fails if API servers would refuse the certificate of
// the webhook with that bundle.
func (w *intended) buildConfiguration() (*webhookConfiguration, error) {
	text, err := os.ReadFile(w.ca)
	if err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %w", err)
	}
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %s: %w", w.ca, err)
	}
	if err := w.verifyServing(bundle.PEM()); err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %s: API servers would refuse its certificate: %w", w.ca, err)
	}
	return w.build(bundle.PEM())
}

// withCAsOf returns want with the CAs of live added, so that replicas with other CAs stay verified.
// It returns want if the CAs of live verify this replica, or add none.
func (w *intended) withCAsOf(live, want *webhookConfiguration) *webhookConfiguration {
	if live == nil || w.verifyServing(bundleOf(live)) == nil {
		return want
	}

	ours := casOf(bundleOf(want))
	all := slices.Clone(ours)
	for _, ca := range casOf(bundleOf(live)) {
		if !slices.ContainsFunc(all, ca.Equal) {
			all = append(all, ca)
		}
	}

	if len(all) == len(ours) {
		return want
	}

	both, err := w.build(keys.Bundle{Certificates: all}.PEM())
	if err != nil {
		return want
	}
	return both
}

// verifyServing checks the certificate of the webhook as an API server with a caBundle does.
func (w *intended) verifyServing(caBundle []byte) error {
	material, err := w.serving.Material()
	if err != nil {
		return err
	}

	roots := x509.NewCertPool()
	intermediates := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	chain := material.Certificate.Certificate
	for _, der := range chain[1:] {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			continue // The verification fails if it is needed.
		}
		intermediates.AddCert(certificate)
	}

	_, err = material.Certificate.Leaf.Verify(x509.VerifyOptions{
		DNSName: w.host, Roots: roots, Intermediates: intermediates, CurrentTime: time.Now(),
	})
	return err
}

// casOf is empty for a bundle that cannot be read.
func casOf(text []byte) []*x509.Certificate {
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil
	}
	return bundle.Certificates
}

// hasAllCAs reports whether a bundle has all CAs of ours.
func hasAllCAs(bundle, ours []byte) bool {
	all := casOf(bundle)
	return !slices.ContainsFunc(casOf(ours), func(ca *x509.Certificate) bool {
		return !slices.ContainsFunc(all, ca.Equal)
	})
}

func bundleOf(configuration *webhookConfiguration) []byte {
	if len(configuration.Webhooks) == 0 {
		return nil
	}
	return configuration.Webhooks[0].ClientConfig.CABundle
}

// identityOf is the same for two configurations with the same webhooks and CAs.
func identityOf(configuration *webhookConfiguration) string {
	return configuration.Annotations[admission.RecordAnnotation] + string(bundleOf(configuration))
}
