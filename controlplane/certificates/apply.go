package certificates

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

func (c *Certificates) apply(ctx context.Context, object client.Object) error {
	return serverside.ApplyTyped(ctx, c.client, object, kindOf(object), fieldOwner)
}

// kindOf needs no scheme: that of the client may not have the types of cert-manager.
func kindOf(object client.Object) schema.GroupVersionKind {
	switch object.(type) {
	case *certv1.Issuer:
		return certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind)
	case *certv1.Certificate:
		return certv1.SchemeGroupVersion.WithKind(certv1.CertificateKind)
	default:
		return corev1.SchemeGroupVersion.WithKind("Secret")
	}
}

// applyAgainAfter is the time after which an unchanged Certificate is applied again. Changes of its
// spec by others are corrected at once, and those of its labels and annotations then.
const applyAgainAfter = time.Hour

// appliedOnce remembers a Certificate that was applied, so that an unchanged one costs no write.
type appliedOnce struct {
	sum        [sha256.Size]byte // of the applied object
	uid        types.UID
	generation int64
	at         time.Time
}

// applyPair applies a Certificate, unless that would change nothing. It notes the generation that
// was read before: an apply does not change that of a Certificate that is correct.
func (c *Certificates) applyPair(ctx context.Context, p *pair) error {
	text, err := json.Marshal(p.wanted)
	if err != nil {
		return err
	}
	now := appliedOnce{sum: sha256.Sum256(text), at: c.opts.Now()}
	if p.existing != nil {
		now.uid, now.generation = p.existing.UID, p.existing.Generation
	}
	known, _ := c.applied.Load(p.wanted.Name)
	last, _ := known.(appliedOnce)
	isRecent := now.at.Sub(last.at) < applyAgainAfter
	if last.at = now.at; p.existing != nil && isRecent && last == now {
		return nil
	}
	if err := c.apply(ctx, p.wanted); err != nil {
		return err
	}
	c.applied.Store(p.wanted.Name, now)
	return nil
}
