package today

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pki is a CA that is the server certificate, too, and an Issuer that signs for runtimes with it.
const pki = `
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: klm-watcher-root, namespace: istio-system}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: klm-watcher-serving, namespace: istio-system}
spec:
  isCA: true
  commonName: klm-watcher-selfsigned-ca
  dnsNames: [listener.kyma.example.com]
  secretName: klm-watcher
  secretTemplate: {labels: {operator.kyma-project.io/managed-by: lifecycle-manager}}
  privateKey: {algorithm: RSA, size: 4096, rotationPolicy: Always}
  issuerRef: {name: klm-watcher-root, kind: Issuer, group: cert-manager.io}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: klm-watcher-selfsigned
  namespace: istio-system
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
spec: {ca: {secretName: klm-watcher}}
`

// certificate is that of a runtime, for both directions and without extended key usages.
const certificate = `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: %[1]s-webhook-tls
  namespace: istio-system
  labels: {operator.kyma-project.io/managed-by: lifecycle-manager}
spec:
  commonName: %[2]s
  dnsNames: [%[2]s.kyma.example.com, skr-webhook.kyma-system.svc.cluster.local, skr-webhook.kyma-system.svc]
  isCA: false
  privateKey: {algorithm: RSA, size: 4096, rotationPolicy: Always}
  usages: [digital signature, key encipherment]
  secretName: %[1]s-webhook-tls
  secretTemplate: {labels: {operator.kyma-project.io/managed-by: lifecycle-manager}}
  issuerRef: {name: klm-watcher-selfsigned, kind: Issuer, group: cert-manager.io}
`

// PKI returns the Issuers and the CA.
func PKI() []*unstructured.Unstructured { return objects(pki) }

// RuntimeCertificate returns the Certificate of the runtime of a Kyma.
func RuntimeCertificate(kyma, id string) *unstructured.Unstructured {
	return objects(fmt.Sprintf(certificate, kyma, id))[0]
}
