// Package today contains the objects of today's fleet as they are in clusters of
// kyma-project/lifecycle-manager: names, namespaces, labels, finalizers, keys and stored versions.
// They are written for the tests of this repository. Its agent and its operator behave like the
// agent and the operator of today, as far as a migration depends on their behaviour.
package today

import (
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
)

const (
	// Namespace contains the agent and the watched objects of a runtime.
	Namespace = "kyma-system"
	// PlaneNamespace contains the operator and its Watchers.
	PlaneNamespace = "kcp-system"
	// GatewayNamespace contains the PKI and the Secret that the ingress gateway reads.
	GatewayNamespace = "istio-system"
	// Host is the name of the gateway.
	Host = "listener.kyma.example.com"
	// Manager is the manager of the only Watcher.
	Manager = "lifecycle-manager"
	// RuntimeIDLabel is the label of a Kyma with the runtime ID.
	RuntimeIDLabel = "kyma-project.io/runtime-id"
	// KymaNameLabel is the label of the Secret with the kubeconfig of a runtime. Its value is the
	// name of the Kyma.
	KymaNameLabel = "operator.kyma-project.io/kyma-name"
	// Finalizer is the finalizer of each Watcher.
	Finalizer = "operator.kyma-project.io/watcher"
)

// Rights returns the objects that a runtime from before 2025-06-03 has in addition to the objects
// of [Agent].
func Rights(namespace string) []*unstructured.Unstructured {
	return Today.objects("rights", namespace)
}

// Agent returns the objects of the agent in a runtime, without the webhook configuration. address
// is the address of the gateway. secret contains ca.crt, tls.crt and tls.key.
func (s Shape) Agent(namespace, image, address string, secret map[string][]byte) []*unstructured.Unstructured {
	all := s.objects("agent", namespace, image, address)
	for _, object := range all {
		if object.GetKind() == "Secret" {
			object.Object["data"] = encoded(secret)
		}
	}
	return all
}

// Kymas returns the definition of Kymas, for runtimes and the control plane.
func Kymas() *unstructured.Unstructured { return Today.objects("kymas")[0] }

// Watchers returns the definition of Watchers that stores v1beta1, or the newer definition that
// stores v1beta2. When the newer definition replaces the older definition, both are among the
// stored versions.
func Watchers(newer bool) *unstructured.Unstructured {
	return Today.objects("watchers", !newer, !newer, newer)[0]
}

// RuntimeWatchers returns the definition that the renaming adds, which stores only v1beta2.
func RuntimeWatchers() *unstructured.Unstructured {
	definition := Next.objects("watchers", false, false, true)[0]
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	_ = unstructured.SetNestedSlice(definition.Object, versions[1:], "spec", "versions")

	return definition
}

// Service is the address of the operator's Service, as a route names it.
const Service = "klm-controller-manager-events.kcp-system.svc.cluster.local:8082"

// Plane returns the Gateway, the AuthorizationPolicy and the Watcher of the control plane.
func (s Shape) Plane() []*unstructured.Unstructured { return s.objects("plane") }

// Configuration returns the webhook configuration of a runtime.
func (s Shape) Configuration(namespace string, bundle []byte) *unstructured.Unstructured {
	return s.objects("configuration", base64.StdEncoding.EncodeToString(bundle), namespace)[0]
}

// WatchedKyma returns an object in a runtime that the Watcher watches. Its owner is the Kyma of the
// runtime in the control plane.
func WatchedKyma(owner, name string) *unstructured.Unstructured {
	object := Today.objects("kyma", name, Namespace)[0]
	object.SetLabels(map[string]string{"operator.kyma-project.io/watched-by": "kyma"})
	object.SetAnnotations(map[string]string{"operator.kyma-project.io/owned-by": PlaneNamespace + "/" + owner})

	return object
}

// RuntimeKyma returns the object of a runtime in the control plane. Its name is not the runtime ID.
func RuntimeKyma(name, id string) *unstructured.Unstructured {
	object := Today.objects("kyma", name, PlaneNamespace)[0]
	object.SetLabels(map[string]string{RuntimeIDLabel: id, KymaNameLabel: name})
	object.SetAnnotations(map[string]string{"skr-domain": id + ".kyma.example.com"})

	return object
}

// PKI returns the Issuers and the CA.
func (s Shape) PKI() []*unstructured.Unstructured { return s.objects("pki") }

// RuntimeCertificate returns the Certificate of the runtime of a Kyma.
func (s Shape) RuntimeCertificate(kyma, id string) *unstructured.Unstructured {
	return s.objects("certificate", kyma, id)[0]
}

//go:embed objects
var files embed.FS

// objects reads the YAML documents of a file of this package, with args in their places.
func (s Shape) objects(name string, args ...any) (all []*unstructured.Unstructured) {
	file, err := files.ReadFile("objects/" + name + ".yaml")
	if err != nil {
		panic(err)
	}

	text := s.named(string(file))
	if len(args) > 0 {
		text = fmt.Sprintf(text, args...)
	}

	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			panic(fmt.Sprintf("%s: %v\n%s", name, err, document))
		}

		all = append(all, object)
	}

	return all
}

// encoded is the data of a Secret, as it is in JSON.
func encoded(data map[string][]byte) map[string]any {
	all := map[string]any{}
	for key, value := range data {
		all[key] = base64.StdEncoding.EncodeToString(value)
	}
	return all
}

// ImageEnv returns the variables of the image that replaces the image of today.
func ImageEnv(t testing.TB) (env []string) {
	t.Helper()

	text := test.Read(t, "deploy/dropin/agent.env")

	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	return env
}

// Serve serves a handler in plain HTTP, and returns its address. The test ends it.
func Serve(t testing.TB, handler http.Handler) string {
	t.Helper()

	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
