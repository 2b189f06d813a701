package certificates

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// Follow watches the metadata of the set's objects until ctx ends. For a changed Certificate or
// Secret of a runtime it calls changed with the Owner. When an annotation of the clients' Issuer
// requests a rotation or a switch, it calls changed with the zero name. The function changed must
// not block.
//
// While Follow runs, [Certificates.Version] returns the versions. If cert-manager is missing,
// Follow retries.
func (c *Certificates) Follow(
	ctx context.Context, watching client.WithWatch, changed func(owner types.NamespacedName),
) {
	ofCertificate := follow.Owned(changed)
	ofSecret := func(name, _ string) { ofCertificate(name, c.certificates.Version(name)) }
	ofIssuer := func(name, _ string) {
		if name == c.names.clients() {
			changed(types.NamespacedName{})
		}
	}

	issuers := follow.New(certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind), c.names.requestVersion)
	var tasks sync.WaitGroup
	tasks.Go(func() { c.certificates.Run(ctx, watching, ofCertificate, c.inSet()...) })
	tasks.Go(func() { c.secrets.Run(ctx, watching, ofSecret, c.inSet()...) })
	tasks.Go(func() { issuers.Run(ctx, watching, ofIssuer, c.inSet()...) })
	tasks.Wait()
}

// Version returns a text that changes whenever r or an object that [Certificates.EnsureRuntime]
// reads for the runtime changes. The text is empty if such an object does not exist or is not
// known. Version reads nothing from the API server.
func (c *Certificates) Version(r Runtime) string {
	bundle, _ := c.bundle.Load().(string)
	if bundle == "" {
		return ""
	}

	parts := []string{bundle, string(r.ID), canonical(r.Domain)}
	if r.Owner != nil {
		parts = append(parts, ownerName(r.Owner), string(r.Owner.GetUID()))
	}

	for _, suffix := range []string{clientSuffix, webhookSuffix} {
		name := objectName(r.ID, suffix)
		certificate := c.certificates.Version(name)
		secret := c.secrets.Version(name)
		if certificate == "" || secret == "" {
			return ""
		}

		parts = append(parts, certificate, secret)
	}

	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return string(sum[:])
}
