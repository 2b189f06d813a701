package agent

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// OwnConfiguration makes an agent maintain its own webhook configuration. The agent creates the
// configuration once the agent answers, and restores it if another program changes or deletes it.
// The configuration stays when the agent ends. Replicas with the same settings agree.
//
// The agent needs the rights to get, watch, create, patch and delete the configuration of this
// name, with the credentials of [Canary].
type OwnConfiguration struct {
	// Watches are the watches for which webhooks are made. They must have no conditions. Default:
	// none, so the agent does not maintain the configuration.
	Watches []watch.Watch
	// Service is the Service in the cluster through which the API server reaches this agent. Either
	// Service or URL is required.
	Service types.NamespacedName
	// ServicePort is the port of Service. Default: 443.
	ServicePort int32
	// URL is the URL at which the API server reaches this agent without a Service.
	URL string
	// CA is the file with the CAs of the certificate of the webhook. It is read for each
	// comparison. Default: the CA file of [Connection].
	CA string
	// WebhookDomain and ExcludedNamespaces have the same meaning as in
	// admission.ConfigurationOptions.
	WebhookDomain      string
	ExcludedNamespaces []string
	// Mark is the annotation that names the owner of the configuration. A configuration of another
	// owner is not changed but reported. Default: installed-by, with the domain of
	// [core.OwnerAnnotation].
	Mark string
}

func (o *OwnConfiguration) mark() string {
	domain, _, _ := strings.Cut(core.OwnerAnnotation, "/")
	return cmp.Or(o.Mark, domain+"/installed-by")
}

func (o *OwnConfiguration) isOn() bool { return len(o.Watches) > 0 }

// owner identifies the agents of one release.
func (o *OwnConfiguration) owner() string {
	return "agent/" + cmp.Or(o.URL, o.Service.String())
}

// host is the name that the certificate of the webhook needs.
func (o *OwnConfiguration) host() string {
	if parsed, err := url.Parse(o.URL); err == nil && parsed.Host != "" {
		return parsed.Hostname()
	}
	return o.Service.Name + "." + o.Service.Namespace + ".svc"
}

// intended is the webhook configuration that an agent is to have. The keeper of the configuration
// has one in its goroutine. [WebhookProblem] makes another one for a dry run.
type intended struct {
	// build returns the configuration for a CA bundle.
	build func(bundle []byte) (*webhookConfiguration, error)
	ca    string // file
	// serving has the certificate that the webhook serves, and host is the name that it needs.
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

// configuration reads the CA bundle. It fails if API servers would refuse the certificate of the
// webhook with that bundle.
func (w *intended) configuration() (*webhookConfiguration, error) {
	text, err := os.ReadFile(w.ca)
	if err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %w", err)
	}
	bundle, err := keys.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %s: %w", w.ca, err)
	}
	if err := w.verify(bundle.PEM()); err != nil {
		return nil, fmt.Errorf("CAs of the webhook: %s: API servers would refuse its certificate: %w", w.ca, err)
	}
	return w.build(bundle.PEM())
}

// withCAsOf returns want with the CAs of live added, so that replicas with other CAs stay verified.
// It returns want if the CAs of live verify this replica, or add none.
func (w *intended) withCAsOf(live, want *webhookConfiguration) *webhookConfiguration {
	if live == nil || w.verify(bundleOf(live)) == nil {
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

// verify checks the certificate of the webhook as an API server with a caBundle does.
func (w *intended) verify(caBundle []byte) error {
	material, err := w.serving.Material()
	if err != nil {
		return err
	}

	roots := x509.NewCertPool()
	intermediates := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	chain := material.Certificate.Certificate
	for _, der := range chain[1:] {
		if certificate, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(certificate)
		}
	}

	_, err = material.Certificate.Leaf.Verify(x509.VerifyOptions{
		DNSName: w.host, Roots: roots, Intermediates: intermediates, CurrentTime: time.Now(),
	})
	return err
}

// standing is the relation of a configuration to the intended one.
type standing int

const (
	standsAsIntended standing = iota
	// standsChanged means that the configuration is missing, or is ours and was changed by another
	// program.
	standsChanged
	// standsOfPeer means that the configuration is complete and was written by a replica with other
	// settings.
	standsOfPeer
	// standsWithMoreCAs means that the configuration is as intended, with CAs of another replica in
	// addition to ours.
	standsWithMoreCAs
	// standsForeign means that the configuration belongs to another owner.
	standsForeign
)

// judge compares the configuration that the API server has with the intended one. The problem is ""
// if no write passes unseen.
func (w *intended) judge(live, want *webhookConfiguration) (state standing, problem string) {
	differences := admission.Differences(live)
	if live == nil {
		return standsChanged, strings.Join(differences, "; ")
	}
	isSame := live.Annotations[admission.RecordAnnotation] == want.Annotations[admission.RecordAnnotation]

	if !w.isOurs(live) {
		if isSame && len(differences) == 0 {
			return standsForeign, ""
		}
		return standsForeign, fmt.Sprintf(
			"the webhook configuration is not as intended and belongs to owner %.100q, not %q",
			live.Annotations[w.mark], w.owner)
	}
	differences = append(differences, w.additions(live, want)...)
	if len(differences) > 0 {
		return standsChanged, strings.Join(differences, "; ")
	}

	hasMore := false
	isPeer := !isSame
	for n := range live.Webhooks {
		bundle := live.Webhooks[n].ClientConfig.CABundle
		switch {
		case bytes.Equal(bundle, bundleOf(want)):
		case w.verify(bundle) != nil:
			return standsChanged, "caBundle changed"
		case hasAllCAs(bundle, bundleOf(want)):
			hasMore = true
		default:
			isPeer = true // A replica has read newer CAs.
		}
	}

	isUnknown := w.conditions == conditionsUnknown && len(withoutConditions(live, want)) > 0
	switch {
	case isPeer || isUnknown:
		return standsOfPeer, ""
	case hasMore:
		return standsWithMoreCAs, ""
	default:
		return standsAsIntended, ""
	}
}

// additions are the changes that [admission.Differences] accepts from an administrator, except for
// the changes of a platform. A webhook in the record may belong to a replica with other settings.
func (w *intended) additions(live, want *webhookConfiguration) (found []string) {
	for _, name := range guestsOf(live, want) {
		found = append(found, name+" is no webhook of this agent")
	}

	for n := range live.Webhooks {
		webhook := &live.Webhooks[n]
		wanted := webhookOf(want, webhook.Name)
		if wanted == nil || wanted.TimeoutSeconds == nil || webhook.TimeoutSeconds == nil {
			continue
		}
		if *webhook.TimeoutSeconds > *wanted.TimeoutSeconds {
			found = append(found, webhook.Name+": timeoutSeconds changed")
		}
	}

	if w.conditions == conditionsKept {
		for _, name := range withoutConditions(live, want) {
			found = append(found, name+": matchConditions are missing")
		}
	}

	if live.Annotations[w.mark] != w.owner {
		found = append(found, "annotation "+w.mark+" changed")
	}
	return found
}

// guestsOf returns the names of webhooks that are not of this agent. An apply would keep them, and
// a policy may refuse them.
func guestsOf(live, want *webhookConfiguration) []string {
	return slices.DeleteFunc(admission.Unrecorded(live), func(name string) bool { return webhookOf(want, name) != nil })
}

// noteConditions notes whether the API server keeps match conditions, which older API servers drop.
// The keeper calls it after each read or apply, in its goroutine.
func (w *intended) noteConditions(live, want *webhookConfiguration) {
	missing := len(withoutConditions(live, want))
	having := 0
	for n := range live.Webhooks {
		if len(live.Webhooks[n].MatchConditions) > 0 {
			having++
		}
	}

	switch {
	case missing == 0:
		w.conditions = conditionsKept
	case having == 0:
		w.conditions = conditionsDropped
	}
}

// withoutConditions names the webhooks that have lost their match conditions.
func withoutConditions(live, want *webhookConfiguration) (names []string) {
	for n := range live.Webhooks {
		webhook := &live.Webhooks[n]
		wanted := webhookOf(want, webhook.Name)
		if wanted != nil && len(wanted.MatchConditions) > 0 && len(webhook.MatchConditions) == 0 {
			names = append(names, webhook.Name)
		}
	}
	return names
}

func webhookOf(
	configuration *webhookConfiguration, name string,
) *admissionregistrationv1.ValidatingWebhook {
	for n := range configuration.Webhooks {
		if configuration.Webhooks[n].Name == name {
			return &configuration.Webhooks[n]
		}
	}
	return nil
}

// isOurs reports whether a configuration has our mark, or has lost the one that an agent wrote. The
// mark of an agent of another release is still managed by that agent.
func (w *intended) isOurs(live *webhookConfiguration) bool {
	isApplied := false
	isMarked := false
	for n := range live.ManagedFields {
		entry := &live.ManagedFields[n]
		if entry.Manager != canary.FieldManager || entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		isApplied = true
		isMarked = isMarked || manages(entry, w.mark)
	}

	mark := live.Annotations[w.mark]
	if mark == w.owner {
		return true
	}
	hasLostMark := mark == "" || !isMarked
	return isApplied && hasLostMark
}

// manages reports whether the entry of a field manager has an annotation.
func manages(entry *metav1.ManagedFieldsEntry, annotation string) bool {
	var fields struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	}
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
		return false
	}

	_, has := fields.Metadata.Annotations["f:"+annotation]
	return has
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
