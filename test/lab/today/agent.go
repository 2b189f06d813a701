package today

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// agent are the objects of a runtime in the shape of skr-webhook/resources.yaml of lifecycle-manager
// c5b83f1, as its internal/service/watcher/resources/resource_configurator.go completes them: label,
// image, KCP_ADDR, limits and GODEBUG. Its placeholders are the namespace, the image and the address
// of the gateway.
const agent = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: skr-webhook-priority}
value: 1000000000
---
apiVersion: v1
kind: Service
metadata: {name: skr-webhook, namespace: %[1]s, labels: {app: skr-webhook}}
spec:
  selector: {app: skr-webhook}
  ports: [{name: webhook, port: 443, targetPort: watcher-port}]
---
apiVersion: v1
kind: Service
metadata: {name: skr-webhook-metrics, namespace: %[1]s, labels: {app: skr-webhook}}
spec:
  selector: {app: skr-webhook}
  ports: [{name: http-metrics, port: 2112, targetPort: metrics-port}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: kyma-project.io--watcher-to-apiserver, namespace: %[1]s}
spec:
  podSelector: {matchLabels: {app: skr-webhook}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 443, protocol: TCP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: kyma-project.io--watcher-to-dns, namespace: %[1]s}
spec:
  podSelector: {matchLabels: {app: skr-webhook}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: kyma-project.io--seed-to-watcher, namespace: %[1]s}
spec:
  podSelector: {matchLabels: {app: skr-webhook}}
  policyTypes: [Ingress]
  ingress: [{ports: [{port: 8443, protocol: TCP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: kyma-project.io--metrics-to-watcher, namespace: %[1]s}
spec:
  podSelector: {matchLabels: {app: skr-webhook}}
  policyTypes: [Ingress]
  ingress: [{ports: [{port: 2112, protocol: TCP}]}]
---
apiVersion: v1
kind: Secret
metadata: {name: skr-webhook-tls, namespace: %[1]s, labels: {operator.kyma-project.io/managed-by: lifecycle-manager}}
type: Opaque
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: skr-webhook
  namespace: %[1]s
  labels: {app: skr-webhook, operator.kyma-project.io/managed-by: lifecycle-manager}
spec:
  replicas: 1
  selector: {matchLabels: {app: skr-webhook}}
  template:
    metadata:
      labels:
        app: skr-webhook
        operator.kyma-project.io/pod-restart-trigger: "1"
        sidecar.istio.io/inject: "false"
    spec:
      priorityClassName: skr-webhook-priority
      securityContext: {runAsUser: 10001, runAsGroup: 30001, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: server
          image: %[2]s
          imagePullPolicy: Always
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: WEBHOOK_PORT, value: "8443"}
            - {name: METRICS_PORT, value: "2112"}
            - {name: TLS_KEY, value: /app/etc/ssl/tls.key}
            - {name: TLS_CERT, value: /app/etc/ssl/tls.crt}
            - {name: CA_CERT, value: /app/etc/ssl/ca.crt}
            - {name: TLS_CALLBACK, value: "true"}
            - {name: KCP_CONTRACT, value: v2}
            - {name: KCP_ADDR, value: "%[3]s"}
            - {name: GODEBUG, value: "fips140=only,tlsmlkem=0"}
          ports:
            - {containerPort: 8443, name: watcher-port}
            - {containerPort: 2112, name: metrics-port}
          securityContext:
            privileged: false
            allowPrivilegeEscalation: false
            runAsNonRoot: true
            capabilities: {drop: [ALL]}
            readOnlyRootFilesystem: true
          resources:
            requests: {cpu: "0.01", memory: 20Mi}
            limits: {cpu: "0.1", memory: 200Mi}
          volumeMounts: [{name: ssl, mountPath: /app/etc/ssl}]
      volumes:
        - name: ssl
          secret:
            secretName: skr-webhook-tls
            items: [{key: tls.key, path: tls.key}, {key: tls.crt, path: tls.crt}, {key: ca.crt, path: ca.crt}]
`

const rights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: skr-webhook-sa, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kyma-reader}
rules:
  - {apiGroups: [operator.kyma-project.io], resources: [kymas], verbs: [get, watch, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: read-kymas}
subjects: [{kind: ServiceAccount, name: skr-webhook-sa, namespace: %[1]s}]
roleRef: {kind: ClusterRole, name: kyma-reader, apiGroup: rbac.authorization.k8s.io}
`

// Rights returns the objects that a runtime from before 2025-06-03 has beside those of [Agent].
func Rights(namespace string) []*unstructured.Unstructured {
	return objects(fmt.Sprintf(rights, namespace))
}

// Agent returns the objects of the agent in a runtime, without the webhook configuration. address
// is that of the gateway. secret has ca.crt, tls.crt and tls.key.
func Agent(namespace, image, address string, secret map[string][]byte) []*unstructured.Unstructured {
	all := objects(fmt.Sprintf(agent, namespace, image, address))
	for _, object := range all {
		if object.GetKind() == "Secret" {
			object.Object["data"] = encoded(secret)
		}
	}
	return all
}
