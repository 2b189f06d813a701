package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

const (
	// annotationImported is <namespace>/<name> of the Secret that a CA was copied from.
	annotationImported = "operator.kyma-project.io/imported-from"
	// annotationAdditional lists the fingerprints of [Options.AdditionalCAs] in the bundle.
	annotationAdditional = "operator.kyma-project.io/additional-cas"
)

// importAuthority copies an existing CA, which becomes the first CA of this set. All peers trust it
// already.
func (c *Certificates) importAuthority(ctx context.Context, seen *observed, generation int, request string) error {
	source, err := serverside.Get(ctx, c.client, c.opts.ImportCA, &corev1.Secret{})
	if err != nil {
		return err
	}
	if source == nil {
		return fmt.Errorf("import: there is no Secret %s", c.opts.ImportCA)
	}
	if err := importable(source, seen); err != nil {
		return fmt.Errorf("import of Secret %s: %w", c.opts.ImportCA, err)
	}
	return c.apply(ctx, c.copyOf(source, generation, request))
}

func (o *observed) isNew() bool {
	return len(o.authorities) == 0 && o.clientSigner == 0 && o.serverSigner == 0
}

// importable reports why a CA cannot be the first one of this set, nil if it can.
func importable(source *corev1.Secret, seen *observed) error {
	pair, err := tls.X509KeyPair(source.Data[corev1.TLSCertKey], source.Data[corev1.TLSPrivateKeyKey])
	switch {
	case err != nil:
		return fmt.Errorf("want a CA in tls.crt and its key in tls.key: %w", err)
	case !pair.Leaf.IsCA:
		return fmt.Errorf("%q in tls.crt is no CA", pair.Leaf.Subject)
	case seen.now.After(pair.Leaf.NotAfter):
		return fmt.Errorf("the CA is expired since %s", pair.Leaf.NotAfter)
	case seen.listener != nil && !slices.ContainsFunc(seen.bundle, pair.Leaf.Equal):
		return errors.New("its CA is not in ca.crt of the existing Secret of the listener, so peers may not trust it")
	default:
		return nil
	}
}

// copyOf has no Certificate: cert-manager would issue the CA anew.
func (c *Certificates) copyOf(source *corev1.Secret, generation int, request string) *corev1.Secret {
	meta := c.meta(c.names.authority(generation))
	meta.Labels[labelRole], meta.Labels[labelGeneration] = roleCA, strconv.Itoa(generation)
	meta.Annotations = map[string]string{
		annotationImported: c.opts.ImportCA.String(), annotationRequest: request,
	}
	return &corev1.Secret{
		ObjectMeta: meta, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			cmmeta.TLSCAKey:         source.Data[corev1.TLSCertKey],
			corev1.TLSCertKey:       source.Data[corev1.TLSCertKey],
			corev1.TLSPrivateKeyKey: source.Data[corev1.TLSPrivateKeyKey],
		},
	}
}

func imported(object client.Object) bool { return object.GetAnnotations()[annotationImported] != "" }

// checkListener refuses a Secret of another program, unless its CA is imported. Agents trust other
// CAs, and a new server certificate would cut them off.
func (c *Certificates) checkListener(seen *observed) error {
	if seen.listener == nil || seen.listener.Labels[labelSet] == string(c.names) || c.opts.ImportCA.Name != "" {
		return nil
	}
	return fmt.Errorf("certificates: existing Secret of the listener is not of this set: %s: "+
		"want Options.ImportCA with its CA, or another name", c.ListenerSecret())
}

// readAdditional reads the CAs of [Options.AdditionalCAs]. It runs after readListener, and removes
// the CAs from the bundle that were additional before, and are not any more.
func (c *Certificates) readAdditional(ctx context.Context, o *observed) error {
	for _, key := range c.opts.AdditionalCAs {
		secret := &corev1.Secret{}
		if err := c.client.Get(ctx, key, secret); err != nil && !serverside.IsAbsent(err) {
			return err
		}
		cas := slices.DeleteFunc(parse(secret.Data[cmmeta.TLSCAKey]), func(ca *x509.Certificate) bool { return !ca.IsCA })
		if len(cas) == 0 { // It may be the wrong Secret.
			return fmt.Errorf("additional CAs: Secret %s has no CA in ca.crt", key)
		}
		o.additional = append(o.additional, cas...)
	}
	o.additional = compose(nil, o.additional, o.now)
	if o.listener != nil {
		former := strings.Split(o.listener.Annotations[annotationAdditional], ",")
		o.bundle = slices.DeleteFunc(o.bundle, func(ca *x509.Certificate) bool {
			return slices.Contains(former, fingerprint(ca)) && !slices.ContainsFunc(o.additional, ca.Equal)
		})
	}
	return nil
}

func (o *observed) additionalValue() string { return strings.Join(fingerprints(o.additional), ",") }

// hasAdditional reports whether the listener's Secret has the additional CAs, and no former ones.
func (o *observed) hasAdditional() bool {
	return o.listener != nil && o.listener.Annotations[annotationAdditional] == o.additionalValue() &&
		!slices.ContainsFunc(o.additional, func(ca *x509.Certificate) bool {
			return !slices.ContainsFunc(o.bundle, ca.Equal)
		})
}
