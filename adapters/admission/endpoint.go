package admission

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Endpoint is the address at which an API server calls a handler: a URL or a service of its
// cluster, and exactly one of them.
type Endpoint struct {
	// URL is an https URL without user, query and fragment. The paths of the handler are appended.
	URL string
	// Service is the name of a service in the runtime.
	Service types.NamespacedName
	// ServicePort is the port of the service. Default: 443.
	ServicePort int32
	// CABundle has the CAs of the endpoint's certificate: at least one, in PEM.
	CABundle []byte
}

// clientConfig returns the address of a path. It sets all defaults that an API server would set,
// and copies the CA bundle.
func (e *Endpoint) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: bytes.Clone(e.CABundle)}
	if e.URL != "" {
		config.URL = new(strings.TrimSuffix(e.URL, "/") + path)
		return config
	}
	config.Service = &admissionregistrationv1.ServiceReference{
		Namespace: e.Service.Namespace,
		Name:      e.Service.Name,
		Path:      new(path),
		Port:      new(cmp.Or(e.ServicePort, defaultPort)),
	}
	return config
}

func (e *Endpoint) validate() error {
	hasService := e.Service != types.NamespacedName{}
	address := errors.New("endpoint: want a URL or a service, have both")
	switch {
	case e.URL == "" && !hasService:
		address = errors.New("endpoint: want a URL or a service, have neither")
	case !hasService:
		address = validateURL(e.URL)
	case e.URL == "":
		address = e.validateService()
	}
	return errors.Join(address, validateBundle(e.CABundle))
}

// validateURL accepts the URLs that an API server accepts for a webhook. Its error does not contain
// a password.
func validateURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("endpoint: want an https URL, have none that can be parsed")
	case u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("endpoint: want https://<host>, have %.200q", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("endpoint: want no user, query or fragment, have %.200q", u.Redacted())
	default:
		return nil
	}
}

// validateService checks the names and the port as an API server does.
func (e *Endpoint) validateService() error {
	var invalidPort error
	if e.ServicePort != 0 {
		invalidPort = invalid(validation.IsValidPortNum(int(e.ServicePort)), "endpoint: port %d", e.ServicePort)
	}
	return errors.Join(
		invalid(validation.IsDNS1123Label(e.Service.Namespace),
			"endpoint: namespace of the service %.80q", e.Service.Namespace),
		invalid(validation.IsDNS1035Label(e.Service.Name), "endpoint: service %.80q", e.Service.Name),
		invalidPort)
}

// validateBundle accepts the bundles that an API server accepts: one or more PEM blocks of type
// CERTIFICATE.
func validateBundle(bundle []byte) error {
	found := 0
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateType {
			return fmt.Errorf("CA bundle: want certificates only, have a PEM block of type %.40q", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("CA bundle: certificate %d: %w", found+1, err)
		}
		found++
	}
	if found == 0 {
		return errors.New("CA bundle: want at least one certificate in PEM, have none")
	}
	return nil
}
