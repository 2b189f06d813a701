{{/* The names of the operator, with the defaults of package names of the module controlplane, as YAML. */}}
{{- define "names" -}}
{{- $n := .Values.names }}
{{- $group := $n.group | default "operator.kyma-project.io" }}
{{- $kind := $n.kind | default "Watcher" }}
group: {{ $group }}
kind: {{ $kind }}
plural: {{ $n.plural | default (printf "%ss" (lower $kind)) }}
prefix: {{ $n.prefix | default $group }}
webhookDomain: {{ $n.webhookDomain | default (trimPrefix "operator." $group) }}
{{- end }}
