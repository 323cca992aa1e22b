{{- define "cachetier.labels" -}}
app.kubernetes.io/name: cachetier
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "cachetier.selector" -}}
app.kubernetes.io/name: cachetier
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "cachetier.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* a switch is on, off, or auto: on where the cluster knows the kind */}}
{{- define "cachetier.wanted" -}}
{{- $switch := toString .switch }}
{{- if or (eq $switch "on") (eq $switch "true") (and (eq $switch "auto") .there) }}true{{ end }}
{{- end }}

{{- /* a switch of a part that may be left out whole, as --set PART=null does; absent: on */}}
{{- define "cachetier.unlessFalse" -}}
{{- if ne (toString .) "false" }}true{{ end }}
{{- end }}
