package admission

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

const defaultPort = 443

// Endpoint is the address at which an API server calls a handler: either a URL or a service of its
// cluster.
type Endpoint struct {
	// URL is an https URL without user, query and fragment. The paths of the handler are appended.
	URL string
	// Service is the name of a service in the runtime.
	Service types.NamespacedName
	// ServicePort is the port of the service. Default: 443.
	ServicePort int32
	// CABundle contains the CAs of the endpoint's certificate in PEM, at least one. A block that
	// [keys.ParseBundle] skips is refused: use the PEM of its result.
	CABundle []byte
}

// clientConfig sets all defaults that an API server would set.
func (e *Endpoint) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: bytes.Clone(e.CABundle)}
	if e.URL != "" {
		base, _ := e.baseURL() // It is valid.
		config.URL = new(base + path)
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

var errEndpointURL = errors.New("want an https URL without user, query and fragment")

// baseURL returns the URL without a slash at its end. Its host has the form in which the API server
// compares it with the certificate.
func (e *Endpoint) baseURL() (string, error) {
	parsed, err := url.Parse(e.URL)
	if err != nil {
		return "", errEndpointURL
	}

	hasMore := parsed.User != nil || parsed.RawQuery+parsed.Fragment != ""
	if parsed.Scheme != "https" || hasMore {
		return "", errEndpointURL
	}

	host, err := connect.ParseHost(parsed.Hostname())
	if err != nil {
		return "", fmt.Errorf("URL: %w", err)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := parsed.Port(); port != "" {
		host += ":" + port
	}

	parsed.Host = host
	return strings.TrimSuffix(parsed.String(), "/"), nil
}

func (e *Endpoint) validate() error {
	hasURL := e.URL != ""
	hasService := e.Service != types.NamespacedName{}
	_, urlErr := e.baseURL()
	return errors.Join(
		option.Unless(hasURL || hasService, "endpoint: want a URL or a service, have neither"),
		option.Unless(!hasURL || !hasService, "endpoint: want a URL or a service, have both"),
		option.Unless(!hasURL || urlErr == nil, "endpoint: %w", urlErr),
		validateBundle(e.CABundle))
}

// validateBundle accepts a bundle that an API server reads in full. An API server skips other
// blocks in silence, so such a block is an error here.
func validateBundle(text []byte) error {
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return fmt.Errorf("CA bundle: want at least one certificate in PEM: %w", err)
	}
	if len(bundle.Skipped) > 0 {
		return fmt.Errorf("CA bundle: want certificates only: %s", strings.Join(bundle.Skipped, ", "))
	}
	return nil
}
