package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// certificatesName begins the names of all certificates, listenerSecret is the Secret that they publish for the listener.
const (
	certificatesName = "watcher"
	listenerSecret   = certificatesName + "-listener"
)

// onlyListenerSecret keeps all other Secrets out of the cache.
func onlyListenerSecret(namespace string) cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{
			namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", listenerSecret)},
		}},
	}}
}

// published is the key material in the listener's Secret, read from the cache. A mounted Secret would do ([httpmtls.Files]), but not at the
// beginning: this operator itself is who makes it, and could not start without.
type published struct {
	secrets client.Reader
	name    types.NamespacedName
	metrics prometheus.KeyMaterial
	log     *slog.Logger

	mu       sync.Mutex
	version  string
	refused  string
	material *httpmtls.Material
}

var _ httpmtls.Source = (*published)(nil)

func newPublished(ctx context.Context, mgr ctrl.Manager, name types.NamespacedName, metrics prometheus.KeyMaterial) (*published, error) {
	// The manager starts its caches before the listener, so no handshake ever waits for this one.
	if _, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false)); err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", name, err)
	}

	return &published{secrets: mgr.GetCache(), name: name, metrics: metrics, log: controllerruntime.Logger(mgr.GetLogger())}, nil
}

// Material implements [httpmtls.Source]. What is broken, or gone, does not replace what was sound.
func (p *published) Material() (*httpmtls.Material, error) {
	var secret corev1.Secret

	err := p.secrets.Get(context.Background(), p.name, &secret)

	p.mu.Lock()
	defer p.mu.Unlock()

	if err == nil && secret.ResourceVersion != p.version {
		err = p.take(&secret)
	}

	if p.material != nil {
		return p.material, nil
	}

	return nil, err
}

// take is tried again with the next handshake, and tells of each Secret once.
func (p *published) take(secret *corev1.Secret) error {
	material, err := httpmtls.NewMaterial(secret.Data["ca.crt"], secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])

	switch {
	case err == nil:
		p.version, p.material = secret.ResourceVersion, material
		p.metrics.Reloaded(material.NotAfter)
	case p.refused != secret.ResourceVersion:
		p.refused = secret.ResourceVersion

		if broken, ok := errors.AsType[*httpmtls.MaterialError](err); ok {
			p.metrics.Refused(broken.Problem)
		}

		p.log.Error("key material of the listener is refused, the last good one stays", slog.Any("error", err))
	}

	return err
}

// roots are the CAs of the runtimes, nil as long as there are none.
func (p *published) roots() *x509.CertPool {
	material, err := p.Material()
	if err != nil {
		return nil
	}

	return material.Roots
}

// check is a readiness check.
func (p *published) check(*http.Request) error {
	_, err := p.Material()

	return err
}
