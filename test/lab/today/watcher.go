package today

import (
	"encoding/base64"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// plane are the objects of the control plane beside the PKI: a Watcher, a gateway that serves plain
// HTTP, too, and a policy that allows contract v2 only.
const plane = `
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata:
  name: klm-watcher
  namespace: kcp-system
  labels: {operator.kyma-project.io/watcher-gateway: default}
spec:
  selector: {istio: ingressgateway}
  servers:
    - hosts: [listener.kyma.example.com]
      port: {name: http, number: 80, protocol: HTTP}
    - hosts: [listener.kyma.example.com]
      port: {name: https, number: 443, protocol: HTTPS}
      tls: {mode: MUTUAL, credentialName: klm-istio-gateway}
---
apiVersion: security.istio.io/v1beta1
kind: AuthorizationPolicy
metadata: {name: klm-controller-manager, namespace: kcp-system}
spec:
  action: ALLOW
  selector: {matchLabels: {app.kubernetes.io/component: lifecycle-manager.kyma-project.io}}
  rules:
    - to: [{operation: {paths: [/metrics, /v2*]}}]
---
apiVersion: operator.kyma-project.io/v1beta2
kind: Watcher
metadata:
  name: klm-kyma-watcher
  namespace: kcp-system
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
  finalizers: [operator.kyma-project.io/watcher]
spec:
  labelsToWatch: {operator.kyma-project.io/watched-by: kyma}
  resourceToWatch: {group: operator.kyma-project.io, version: "*", resource: kymas}
  field: spec
  serviceInfo: {name: klm-event-service, namespace: kcp-system, port: 8082}
  gateway: {selector: {matchLabels: {operator.kyma-project.io/watcher-gateway: default}}}
`

// Service is the address of the operator's Service, as a route names it.
const Service = "klm-event-service.kcp-system.svc.cluster.local:8082"

// Plane returns the Gateway, the AuthorizationPolicy and the Watcher of the control plane.
func Plane() []*unstructured.Unstructured { return objects(plane) }

// configuration is the webhook configuration of the Watcher: an API server waits up to 15 s, and
// there is no namespaceSelector.
const configuration = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: skr-webhook
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
webhooks:
  - name: kcp-system.klm-kyma-watcher.operator.kyma-project.io
    objectSelector: {matchLabels: {operator.kyma-project.io/watched-by: kyma}}
    admissionReviewVersions: [v1]
    clientConfig:
      caBundle: %s
      service: {name: skr-webhook, namespace: %s, path: /validate/lifecycle-manager}
    rules:
      - apiGroups: [operator.kyma-project.io]
        apiVersions: ["*"]
        resources: [kymas]
        operations: [CREATE, UPDATE, DELETE]
    sideEffects: NoneOnDryRun
    timeoutSeconds: 15
    failurePolicy: Ignore
`

// Configuration returns the webhook configuration of a runtime.
func Configuration(namespace string, bundle []byte) *unstructured.Unstructured {
	return objects(fmt.Sprintf(configuration, base64.StdEncoding.EncodeToString(bundle), namespace))[0]
}

// kyma is a watched object in a runtime, or the object of a runtime in the control plane.
const kyma = `
apiVersion: operator.kyma-project.io/v1beta2
kind: Kyma
metadata: {name: %s, namespace: %s}
spec: {channel: regular}
`

// WatchedKyma returns an object in a runtime that the Watcher watches. Its owner is the Kyma of the
// runtime in the control plane.
func WatchedKyma(owner, name string) *unstructured.Unstructured {
	object := objects(fmt.Sprintf(kyma, name, Namespace))[0]
	object.SetLabels(map[string]string{"operator.kyma-project.io/watched-by": "kyma"})
	object.SetAnnotations(map[string]string{"operator.kyma-project.io/owned-by": PlaneNamespace + "/" + owner})
	return object
}

// RuntimeKyma returns the object of a runtime in the control plane. Its name is not the runtime ID.
func RuntimeKyma(name, id string) *unstructured.Unstructured {
	object := objects(fmt.Sprintf(kyma, name, PlaneNamespace))[0]
	object.SetLabels(map[string]string{RuntimeIDLabel: id, KymaNameLabel: name})
	object.SetAnnotations(map[string]string{"skr-domain": id + ".kyma.example.com"})
	return object
}
