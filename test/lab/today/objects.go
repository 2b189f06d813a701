package today

import (
	"embed"
	"encoding/base64"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Rights returns the objects that a runtime from before 2025-06-03 has beside those of [Agent].
func Rights(namespace string) []*unstructured.Unstructured {
	return objects("rights", namespace)
}

// Agent returns the objects of the agent in a runtime, without the webhook configuration. address
// is that of the gateway. secret has ca.crt, tls.crt and tls.key.
func Agent(namespace, image, address string, secret map[string][]byte) []*unstructured.Unstructured {
	all := objects("agent", namespace, image, address)
	for _, object := range all {
		if object.GetKind() == "Secret" {
			object.Object["data"] = encoded(secret)
		}
	}
	return all
}

// Kymas returns the definition of Kymas, for runtimes and the control plane.
func Kymas() *unstructured.Unstructured { return objects("kymas")[0] }

// Watchers returns the definition of Watchers that stores v1beta1, or the newer one that stores
// v1beta2. When the newer one replaces the older one, both are among the stored versions.
func Watchers(newer bool) *unstructured.Unstructured {
	return objects("watchers", !newer, !newer, newer)[0]
}

// Service is the address of the operator's Service, as a route names it.
const Service = "klm-controller-manager-events.kcp-system.svc.cluster.local:8082"

// Plane returns the Gateway, the AuthorizationPolicy and the Watcher of the control plane.
func Plane() []*unstructured.Unstructured { return objects("plane") }

// Configuration returns the webhook configuration of a runtime.
func Configuration(namespace string, bundle []byte) *unstructured.Unstructured {
	return objects("configuration", base64.StdEncoding.EncodeToString(bundle), namespace)[0]
}

// WatchedKyma returns an object in a runtime that the Watcher watches. Its owner is the Kyma of the
// runtime in the control plane.
func WatchedKyma(owner, name string) *unstructured.Unstructured {
	object := objects("kyma", name, Namespace)[0]
	object.SetLabels(map[string]string{"operator.kyma-project.io/watched-by": "kyma"})
	object.SetAnnotations(map[string]string{"operator.kyma-project.io/owned-by": PlaneNamespace + "/" + owner})
	return object
}

// RuntimeKyma returns the object of a runtime in the control plane. Its name is not the runtime ID.
func RuntimeKyma(name, id string) *unstructured.Unstructured {
	object := objects("kyma", name, PlaneNamespace)[0]
	object.SetLabels(map[string]string{RuntimeIDLabel: id, KymaNameLabel: name})
	object.SetAnnotations(map[string]string{"skr-domain": id + ".kyma.example.com"})
	return object
}

// PKI returns the Issuers and the CA.
func PKI() []*unstructured.Unstructured { return objects("pki") }

// RuntimeCertificate returns the Certificate of the runtime of a Kyma.
func RuntimeCertificate(kyma, id string) *unstructured.Unstructured {
	return objects("certificate", kyma, id)[0]
}

//go:embed objects
var files embed.FS

// objects reads the YAML documents of a file of this package, with args in their places.
func objects(name string, args ...any) (all []*unstructured.Unstructured) {
	text, err := files.ReadFile("objects/" + name + ".yaml")
	if err != nil {
		panic(err)
	}
	if len(args) > 0 {
		text = fmt.Appendf(nil, string(text), args...)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
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
