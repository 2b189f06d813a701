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

// Endpoint is where the API server of a runtime reaches a [Handler]: at a URL or at a service of its cluster, exactly
// one of them.
type Endpoint struct {
	// URL is an https URL without query, below which the paths of the handler begin.
	URL string
	// Service is a service in the runtime.
	Service types.NamespacedName
	// ServicePort is the port of the service. Default: 443.
	ServicePort int32
	// CABundle is what the endpoint's certificate must chain to: at least one certificate in PEM.
	CABundle []byte
}

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
	var none types.NamespacedName

	switch {
	case e.URL == "" && e.Service == none:
		return errors.Join(errors.New("endpoint: want a URL or a service, have neither"), validateBundle(e.CABundle))
	case e.URL != "" && e.Service != none:
		return errors.Join(errors.New("endpoint: want a URL or a service, have both"), validateBundle(e.CABundle))
	case e.URL != "":
		return errors.Join(validateURL(e.URL), validateBundle(e.CABundle))
	default:
		return errors.Join(e.validateService(), validateBundle(e.CABundle))
	}
}

// validateURL follows what an API server accepts of a webhook's URL.
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

func (e *Endpoint) validateService() error {
	var problems []error

	if wrong := validation.IsDNS1123Label(e.Service.Namespace); wrong != nil {
		problems = append(problems, fmt.Errorf("endpoint: namespace of the service %.80q: %s", e.Service.Namespace, wrong[0]))
	}

	if wrong := validation.IsDNS1035Label(e.Service.Name); wrong != nil {
		problems = append(problems, fmt.Errorf("endpoint: service %.80q: %s", e.Service.Name, wrong[0]))
	}

	if wrong := validation.IsValidPortNum(int(e.ServicePort)); wrong != nil && e.ServicePort != 0 {
		problems = append(problems, fmt.Errorf("endpoint: port %d: %s", e.ServicePort, wrong[0]))
	}

	return errors.Join(problems...)
}

// validateBundle accepts what an API server does: PEM blocks of type CERTIFICATE, at least one.
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
