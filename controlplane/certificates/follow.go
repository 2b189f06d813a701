package certificates

import (
	"context"
	"crypto/sha256"
	"strconv"
	"strings"
	"sync"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/follow"
)

// Follow watches the metadata of the set's objects until ctx ends. For a changed Certificate or
// Secret of a runtime it calls changed with the Owner. When an annotation of the clients' Issuer
// asks for a rotation or a switch, it calls changed with the zero name. changed must not block.
//
// While Follow runs, [Certificates.Version] knows the versions. It retries without cert-manager.
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
	issuers := follow.New(certv1.SchemeGroupVersion.WithKind(certv1.IssuerKind), requestVersion)
	var tasks sync.WaitGroup
	tasks.Go(func() { c.certificates.Run(ctx, watching, ofCertificate, c.inSet()...) })
	tasks.Go(func() { c.secrets.Run(ctx, watching, ofSecret, c.inSet()...) })
	tasks.Go(func() { issuers.Run(ctx, watching, ofIssuer, c.inSet()...) })
	tasks.Wait()
}

// certificateVersion begins with the owner. The status of a Certificate does not matter.
func certificateVersion(meta *metav1.PartialObjectMetadata) string {
	return meta.Annotations[annotationOwner] + " " + meta.Annotations[annotationOwnerUID] + " " +
		string(meta.UID) + " " + strconv.FormatInt(meta.Generation, 10) + strconv.FormatBool(meta.DeletionTimestamp != nil)
}

func requestVersion(meta *metav1.PartialObjectMetadata) string {
	return meta.Annotations[annotationRotate] + "\n" + meta.Annotations[annotationSwitchAnyway]
}

// Version returns a text that changes with the objects that [Certificates.EnsureRuntime] reads for
// a runtime, and with the runtime. It is empty if one of them does not exist or is not known. It
// reads nothing from the API server.
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
		certificate, secret := c.certificates.Version(name), c.secrets.Version(name)
		if certificate == "" || secret == "" {
			return ""
		}
		parts = append(parts, certificate, secret)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return string(sum[:])
}
