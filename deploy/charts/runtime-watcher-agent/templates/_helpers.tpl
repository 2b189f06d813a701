{{/* Metadata of an object with that name. Names are fixed: the certificate of the webhook has the name of the Service. */}}
{{- define "agent.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
{{ include "agent.marked" .root }}
{{- end }}

{{/* Labels and annotations of all objects. The mark keeps installers of control planes from taking or removing them. */}}
{{- define "agent.marked" -}}
labels: {{- toYaml (merge (dict "app.kubernetes.io/name" "runtime-watcher") .Values.labels) | nindent 2 }}
annotations: {{- toYaml (merge (dict (printf "%s/installed-by" (include "agent.prefix" .)) "helm") .Values.annotations) | nindent 2 }}
{{- end }}

{{/* Labels and annotations of the pods. Those of the chart win. */}}
{{- define "agent.common" -}}
labels: {{- toYaml (merge (dict "app.kubernetes.io/name" "runtime-watcher") .Values.labels) | nindent 2 }}
{{- with .Values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether the agent has a canary: it proves the webhook. */}}
{{- define "agent.canary" -}}
{{ and .Values.canary.enabled (eq .Values.source "admission") }}
{{- end }}

{{/* Whether the agent keeps its own webhook configuration. */}}
{{- define "agent.own" -}}
{{ and (eq .Values.source "admission") (gt (len .Values.webhooks.watchers) 0) }}
{{- end }}

{{/* The Secret of a certificate for the webhook alone, empty for none. */}}
{{- define "agent.serving" -}}
{{- $serving := .Values.tls.serving -}}
{{- if or $serving.secretName $serving.issuerRef.name $serving.generate -}}
{{ $serving.secretName | default "runtime-watcher-serving" }}
{{- end -}}
{{- end }}

{{/* The name by which the API server calls the webhook. */}}
{{- define "agent.host" -}}
runtime-watcher.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The prefix of labels and annotations. */}}
{{- define "agent.prefix" -}}
{{ .Values.names.prefix | default "operator.kyma-project.io" }}
{{- end }}

{{/* The annotation with the owner of the webhook configuration. The agent derives it from the annotation of owners. */}}
{{- define "agent.mark" -}}
{{- $env := .Values.env | default dict -}}
{{- $domain := include "agent.prefix" . -}}
{{- if hasKey $env "OWNER_ANNOTATION" -}}
{{- $domain = contains "/" $env.OWNER_ANNOTATION | ternary (splitList "/" $env.OWNER_ANNOTATION | first) "operator.kyma-project.io" -}}
{{- end -}}
{{ $domain }}/installed-by
{{- end }}

{{/* The value of WATCHERS for a list of Watchers. A '$' would begin a reference to another variable. */}}
{{- define "agent.watchers" -}}
{{- $items := list }}
{{- range . }}
{{- $items = append $items (merge (deepCopy .) (dict "kind" "Watcher")) }}
{{- end }}
{{- dict "kind" "WatcherList" "items" $items | toYaml | replace "$" "$$" }}
{{- end }}

{{/* The ports of the pods. With --reuse-values, those of a chart that had none are missing. */}}
{{- define "agent.ports" -}}
{{- $ports := merge (dict) (.Values.ports | default dict) (dict "webhook" 8443 "metrics" 2112) -}}
{{- if eq (int $ports.webhook) (int $ports.metrics) -}}
{{- fail (printf "ports: webhook and metrics are both %d, want two ports" (int $ports.webhook)) -}}
{{- end -}}
webhook: {{ int $ports.webhook }}
metrics: {{ int $ports.metrics }}
{{- end }}

{{- define "agent.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Ports of the way to the control plane: that of the proxy, or that of the address. With HTTPS_PROXY both, as NO_PROXY decides. */}}
{{- define "agent.wayOut" -}}
{{- $own := splitList ":" .Values.controlPlane.address | last -}}
{{- $proxy := .Values.controlPlane.proxy -}}
{{- $environment := .Values.env.HTTPS_PROXY | default "" | lower | trimPrefix "http://" | trimSuffix "/" -}}
{{- if and $proxy (ne $proxy "direct") -}}
- {{ include "agent.portOf" $proxy | default "3128" }}
{{- else -}}
- {{ $own }}
{{- if and $environment (not $proxy) (not (contains "/" $environment)) }}
{{- $port := include "agent.portOf" $environment | default "80" }}
{{- if and (ne $port $own) (le (int $port) 65535) }}
- {{ $port }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The port of an address, empty for none. */}}
{{- define "agent.portOf" -}}
{{- regexFind ":[0-9]+$" (trimSuffix "/" .) | trimPrefix ":" -}}
{{- end -}}
