// Package names defines the names that an operator gives to stored objects. These are the API group
// and the kind of its custom resource, and the labels, annotations and finalizers on objects in the
// control plane and in the runtimes. No other package of this module defines such a name.
//
// The package depends only on k8s.io/apimachinery.
package names

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Names are the names of one operator. The zero value means the names of
// kyma-project/lifecycle-manager. Any other operator sets Group, from which all other names are
// derived.
//
// Names are stored, so they must not change during the life of an installation. With a new value,
// an operator finds none of the custom resources, agents, certificates and finalizers that were
// installed under the former value. All parts of one operator must use the same value, and two
// operators of one control plane must differ in Group.
type Names struct {
	// Group is the API group of the custom resource that defines a watch: a DNS-1123 subdomain with
	// a dot, such as "fleet.example.com". Default: "operator.kyma-project.io".
	Group string
	// Kind is the kind of that custom resource, in upper camel case. Default: "Watcher".
	Kind string
	// Plural is the name of that custom resource in URLs and in rights. Default: the plural that
	// Kubernetes guesses from Kind, such as "watchers".
	Plural string

	// Prefix is the prefix of all labels and annotations, without the '/': a DNS-1123 subdomain.
	// Default: Group.
	Prefix string
	// Finalizer is the finalizer of each object in the control plane that represents a runtime with
	// an agent. Default: "<Prefix>/runtime-watcher".
	Finalizer string
	// DomainAnnotation names the annotation that contains the domain of a runtime, on the object
	// that represents the runtime. Also pass it to controllerruntime.RuntimesOptions. Default:
	// "skr-domain" with the default Group, and "<Prefix>/domain" with any other.
	DomainAnnotation string
	// OwnerAnnotation names the annotation that contains <namespace>/<name> of the object that
	// represents the runtime, on a watched object in a runtime. Default: "<Prefix>/owned-by".
	OwnerAnnotation string
	// WebhookDomain is the last part of the names of all webhooks in the runtimes, such as
	// <namespace>.<name>.operator.<WebhookDomain>. It is a DNS-1123 subdomain of at most 116
	// characters. Default: Group, without "operator." at its start.
	WebhookDomain string
}

const (
	defaultGroup            = "operator.kyma-project.io"
	defaultDomainAnnotation = "skr-domain"
	// version is the version of the types in api/v1beta2, in each group.
	version = "v1beta2"
)

// WithDefaults returns n with each empty field set to its default. The result is valid only if n is
// valid.
func (n Names) WithDefaults() Names {
	n.Group = cmp.Or(n.Group, defaultGroup)
	n.Kind = cmp.Or(n.Kind, "Watcher")
	if n.Plural == "" {
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: n.Kind})
		n.Plural = plural.Resource
	}

	n.Prefix = cmp.Or(n.Prefix, n.Group)
	n.Finalizer = cmp.Or(n.Finalizer, n.Prefix+"/runtime-watcher")
	n.OwnerAnnotation = cmp.Or(n.OwnerAnnotation, n.Prefix+"/owned-by")
	n.WebhookDomain = cmp.Or(n.WebhookDomain, strings.TrimPrefix(n.Group, "operator."))

	if n.DomainAnnotation == "" && n.Group == defaultGroup {
		n.DomainAnnotation = defaultDomainAnnotation
	}

	n.DomainAnnotation = cmp.Or(n.DomainAnnotation, n.Prefix+"/domain")
	return n
}

const (
	// watchLabel is in the names of webhooks, before the domain.
	watchLabel = "operator"
	// maxWebhookDomain leaves room for a namespace and a name of 63 characters each.
	maxWebhookDomain = validation.DNS1123SubdomainMaxLength -
		2*(validation.DNS1123LabelMaxLength+1) - len(watchLabel) - 1
)

var kindPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

// Validate returns a joined error with all problems of n with its defaults. Each problem names the
// field, its rule and its value.
func (n Names) Validate() error {
	n = n.WithDefaults()
	problems := []error{
		subdomain("Group", n.Group),
		subdomain("Prefix", n.Prefix),
		subdomain("WebhookDomain", n.WebhookDomain),
		key("Finalizer", n.Finalizer),
		key("DomainAnnotation", n.DomainAnnotation),
		key("OwnerAnnotation", n.OwnerAnnotation),
	}

	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}

	if !strings.Contains(n.Group, ".") {
		problem("Group: want a group with a dot, such as fleet.example.com, have %.80q", n.Group)
	}
	if !kindPattern.MatchString(n.Kind) || strings.HasSuffix(n.Kind, "List") {
		problem("Kind: want upper camel case of at most 63 characters, without List at its end, have %.80q", n.Kind)
	}
	if wrong := validation.IsDNS1035Label(n.Plural); wrong != nil {
		problem("Plural: %s, have %.80q", strings.Join(wrong, ", "), n.Plural)
	}
	if name := n.Plural + "." + n.Group; len(name) > validation.DNS1123SubdomainMaxLength {
		problem("Plural and Group: the name of the definition has %d characters, want at most %d",
			len(name), validation.DNS1123SubdomainMaxLength)
	}

	if !strings.Contains(n.Finalizer, "/") {
		problem("Finalizer: want <domain>/<name>, have %.80q", n.Finalizer)
	}
	if len(n.WebhookDomain) > maxWebhookDomain {
		problem("WebhookDomain: want at most %d characters, have %d", maxWebhookDomain, len(n.WebhookDomain))
	}
	if n.Finalizer == n.formerFinalizer() {
		problem("Finalizer: want a finalizer other than %q, which belongs to a former controller", n.Finalizer)
	}

	return errors.Join(problems...)
}

// subdomain refuses the domains of Kubernetes: an API server takes no custom resource in them
// without an approval (KEP-1111), and their labels belong to Kubernetes.
func subdomain(field, domain string) error {
	if wrong := validation.IsDNS1123Subdomain(domain); wrong != nil {
		return fmt.Errorf("%s: %s, have %.80q", field, strings.Join(wrong, ", "), domain)
	}

	reserved := []string{"k8s.io", "kubernetes.io"}
	isReserved := func(r string) bool { return domain == r || strings.HasSuffix(domain, "."+r) }
	if slices.ContainsFunc(reserved, isReserved) {
		return fmt.Errorf("%s: want a domain of your own, have %.80q, which belongs to Kubernetes", field, domain)
	}

	return nil
}

func key(field, name string) error {
	if wrong := validation.IsQualifiedName(strings.ToLower(name)); wrong != nil {
		return fmt.Errorf("%s: %s, have %.80q", field, strings.Join(wrong, ", "), name)
	}
	return nil
}

// GroupVersionKind returns the group, version and kind of the custom resource. The version is
// v1beta2 in each group.
func (n Names) GroupVersionKind() schema.GroupVersionKind {
	n = n.WithDefaults()
	return schema.GroupVersionKind{Group: n.Group, Version: version, Kind: n.Kind}
}

// Key returns the key of a label or an annotation, "<Prefix>/<word>".
func (n Names) Key(word string) string { return n.WithDefaults().Prefix + "/" + word }

// ManagedBy returns the label "<Prefix>/managed-by". On a custom resource without spec.manager it
// names the manager, and on a route the program that made it.
func (n Names) ManagedBy() string { return n.Key("managed-by") }

// InstalledBy returns the annotation "<Prefix>/installed-by": the mark with the owner's identity on
// each object that an installer makes in a runtime. An object without this annotation does not
// belong to an installer.
func (n Names) InstalledBy() string { return n.Key("installed-by") }

// MaxName returns the largest total number of characters in the names of a custom resource and its
// namespace, because both become part of the name of a webhook,
// <namespace>.<name>.operator.<WebhookDomain>.
func (n Names) MaxName() int {
	return validation.DNS1123SubdomainMaxLength - len(".") - len("."+watchLabel+"."+n.WithDefaults().WebhookDomain)
}

func (n Names) formerFinalizer() string { return n.Key("watcher") }
