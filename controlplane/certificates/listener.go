package certificates

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
)

// wantedListener has bundle and certificate in one Secret, so that they never mix generations.
// observe calls it.
func (c *Certificates) wantedListener(o *observed) *corev1.Secret {
	server := o.serverSecret()
	if server == nil {
		return nil
	}

	bundle := compose(o.bundle, slices.Concat(o.issued, o.additional), o.now)
	since := o.published.since
	for _, ca := range bundle {
		if !slices.ContainsFunc(o.bundle, ca.Equal) {
			since = o.now
		}
	}

	secret := &corev1.Secret{
		TypeMeta: secretType(), ObjectMeta: c.metaOf(""), Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         encode(bundle),
			corev1.TLSCertKey:       server.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: server.Data[corev1.TLSPrivateKeyKey],
		},
	}

	key := c.ListenerSecret()
	secret.Namespace = key.Namespace
	secret.Name = key.Name
	secret.Annotations = map[string]string{
		c.names.key(annotationBundleSince): since.UTC().Format(time.RFC3339Nano),
		c.names.key(annotationAdditional):  strings.Join(fingerprints(o.additional), ","),
	}

	if o.listener != nil {
		secret.Type = o.listener.Type // It cannot be changed, and another program may have made the Secret.
	}

	return secret
}

// isPublished ignores other keys of the listener's Secret. A Secret without the mark of this set is
// written again: an import takes it over, and until then no agent gets its bundle.
func (o *observed) isPublished() bool {
	if o.listener == nil || o.wanted == nil || !o.names.isInSet(o.listener) {
		return false
	}

	for key, value := range o.wanted.Data {
		if !bytes.Equal(value, o.listener.Data[key]) {
			return false
		}
	}

	for key, value := range o.wanted.Annotations {
		if value != o.listener.Annotations[key] {
			return false
		}
	}
	return true
}

// checkListener refuses a Secret of another program, unless its CA is imported. Agents trust other
// CAs, and a new server certificate would cut them off. After the first rotation, such a Secret is
// no longer the one that the import took over, and its bundle may have a CA of a stranger.
func (c *Certificates) checkListener(seen *observed) error {
	if seen.listener == nil || c.names.isInSet(seen.listener) {
		return nil
	}
	if c.opts.ImportCA.Name != "" && !seen.hasRotated() {
		return nil
	}
	return fmt.Errorf("certificates: existing Secret of the listener is not of this set: %s: "+
		"want Options.ImportCA with the CA of that Secret, or another name for the Secret", c.ListenerSecret())
}

// publishListener writes the Secret of the listener. checkListener has decided which set owns the
// present Secret: an import takes it over.
func (c *Certificates) publishListener(ctx context.Context, seen *observed) error {
	if seen.wanted == nil {
		return nil
	}
	if seen.listener == nil {
		return c.applyOver(ctx, seen.wanted, nil)
	}
	return c.applyOver(ctx, seen.wanted, seen.listener)
}
