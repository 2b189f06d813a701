package today

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Shape is a generation of the names of lifecycle-manager.
type Shape int

const (
	// Today contains the names of c5b83f1.
	Today Shape = iota
	// Next contains the names of its ADR 009, as accepted in August 2026 and planned in its issues
	// 3566 to 3571. The Watcher keeps its name, and its kind is RuntimeWatcher.
	Next
)

// renaming is the table of the ADR. A longer name comes before a shorter one that it begins with.
func renaming() *strings.Replacer {
	return strings.NewReplacer(
		"skr-webhook-tls", "runtime-watcher-client",
		"skr-webhook", "runtime-watcher",
		"--seed-to-watcher", "--seed-to-runtime-watcher",
		"--watcher-to-", "--runtime-watcher-to-",
		"--metrics-to-watcher", "--metrics-to-runtime-watcher",
		"kind: Watcher, listKind: WatcherList, plural: watchers, singular: watcher",
		"kind: RuntimeWatcher, listKind: RuntimeWatcherList, plural: runtimewatchers, singular: runtimewatcher",
		"{name: watchers.", "{name: runtimewatchers.",
		"kind: Watcher\n", "kind: RuntimeWatcher\n",
		"klm-watcher-root", "klm-runtime-watcher-ca",
		"klm-watcher-serving", "klm-runtime-watcher-ca",
		"klm-watcher-selfsigned-ca", "klm-watcher-selfsigned-ca", // A common name stays.
		"klm-watcher-selfsigned", "klm-runtime-watcher-client",
		"secretName: klm-watcher", "secretName: klm-runtime-watcher-ca",
		"kcp-system/klm-watcher", "kcp-system/klm-runtime-watcher",
		"kind: Gateway\nmetadata:\n  name: klm-watcher", "kind: Gateway\nmetadata:\n  name: klm-runtime-watcher",
		"klm-istio-gateway", "klm-runtime-watcher-server",
		"/watcher-gateway", "/runtime-watcher-gateway",
		"%[1]s-webhook-tls", "klm-%[1]s-runtime-watcher-client",
	)
}

func (s Shape) named(text string) string {
	if s == Today {
		return text
	}
	return renaming().Replace(text)
}

// Name returns the name of most objects in a runtime.
func (s Shape) Name() string { return s.named("skr-webhook") }

// CA returns the Secret of the CA, which is also the server certificate.
func (s Shape) CA() types.NamespacedName {
	if s == Today {
		return types.NamespacedName{Namespace: GatewayNamespace, Name: "klm-watcher"}
	}
	return types.NamespacedName{Namespace: GatewayNamespace, Name: "klm-runtime-watcher-ca"}
}

// CACertificate is the name of the Certificate of the CA.
func (s Shape) CACertificate() string { return s.named("klm-watcher-serving") }

// GatewaySecret is the Secret that the gateway serves with, and verifies runtimes with.
func (s Shape) GatewaySecret() types.NamespacedName {
	return types.NamespacedName{Namespace: GatewayNamespace, Name: s.named("klm-istio-gateway")}
}

// RuntimeSecret is the Secret of a runtime in the control plane, with the name of its Certificate.
func (s Shape) RuntimeSecret(kyma string) types.NamespacedName {
	name := strings.ReplaceAll(s.named("%[1]s-webhook-tls"), "%[1]s", kyma)
	return types.NamespacedName{Namespace: GatewayNamespace, Name: name}
}

// WatcherKind is the kind of Watchers.
func (s Shape) WatcherKind() schema.GroupVersionKind {
	kind := "Watcher"
	if s == Next {
		kind = "RuntimeWatcher"
	}
	return schema.GroupVersionKind{Group: "operator.kyma-project.io", Version: "v1beta2", Kind: kind}
}

// Page returns a page about the shape Today with the names of s.
func (s Shape) Page(text string) string {
	if s == Today {
		return text
	}
	return strings.ReplaceAll(s.named(text), "kubectl wait watchers", "kubectl wait runtimewatchers")
}
