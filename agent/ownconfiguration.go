package agent

import (
	"cmp"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
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
