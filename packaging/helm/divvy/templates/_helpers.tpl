{{/* Name of all resources. */}}
{{- define "divvy.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "divvy.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "divvy.labels" -}}
{{ include "divvy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "divvy.configMap" -}}
{{- .Values.rules.existingConfigMap | default (printf "%s-rules" (include "divvy.fullname" .)) -}}
{{- end -}}

{{/* Stops if values contradict each other. values.schema.json checks each of them alone. */}}
{{- define "divvy.check" -}}
{{- with .Values -}}
{{- if not (or .passwordSecret.name .accessSecret.name .allowAnonymous) -}}
{{- fail "set passwordSecret.name or accessSecret.name, or allowAnonymous=true: without a password and users, every client in the cluster may change limits" -}}
{{- end -}}
{{- if and .tokenKeySecret.name (not (or .passwordSecret.name .accessSecret.name)) -}}
{{- fail "tokenKeySecret needs passwordSecret or accessSecret: without them, clients need no token" -}}
{{- end -}}
{{- if not (or .rules.existingConfigMap (hasKey .rules.files .rules.file)) -}}
{{- fail (printf "rules.files has no %s, which rules.file names" .rules.file) -}}
{{- end -}}
{{- if and .tls.secret .tls.clientCaKey (has "http" .tls.fronts) -}}
{{- fail "tls.clientCaKey with `http` in tls.fronts: the kubelet has no client certificate, so every probe would fail" -}}
{{- end -}}
{{- if eq .store "redis" -}}
{{- if eq (empty .redis.url) (empty .redis.urlSecret.name) -}}
{{- fail "store=redis needs redis.url or redis.urlSecret.name, and not both" -}}
{{- end -}}
{{- if ne (empty .redis.passwordSecret.name) (not (contains "$(REDIS_PASSWORD)" .redis.url)) -}}
{{- fail "redis.passwordSecret and $(REDIS_PASSWORD) in redis.url need each other" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Listeners that are on: JSON list of names, ports and flags. */}}
{{- define "divvy.listeners" -}}
{{- $on := list -}}
{{- if .Values.listeners.line }}{{ $on = append $on (dict "name" "line" "port" 8321) }}{{ end -}}
{{- $on = append $on (dict "name" "http" "port" 8322) -}}
{{- if .Values.listeners.grpc }}{{ $on = append $on (dict "name" "grpc" "port" 8323) }}{{ end -}}
{{- if .Values.listeners.resp }}{{ $on = append $on (dict "name" "resp" "port" 9049) }}{{ end -}}
{{- toJson $on -}}
{{- end -}}

{{- define "divvy.scheme" -}}
{{- if and .Values.tls.secret (has "http" .Values.tls.fronts) }}https{{ else }}http{{ end -}}
{{- end -}}

{{/*
Secrets that divvy reads as files: JSON list of the volume's name, the Secret's name, and the key for each flag. The files of
the same volume are in /run/secrets/divvy/NAME.
*/}}
{{- define "divvy.secrets" -}}
{{- $secrets := list
  (dict "volume" "password" "secret" .Values.passwordSecret.name "files" (dict "requirepass-file" .Values.passwordSecret.key))
  (dict "volume" "access" "secret" .Values.accessSecret.name "files" (dict "access-file" .Values.accessSecret.key))
  (dict "volume" "token-keys" "secret" .Values.tokenKeySecret.name "files" (dict "token-key-file" .Values.tokenKeySecret.key))
  (dict "volume" "tls" "secret" .Values.tls.secret "files" (dict "tls-cert" .Values.tls.certKey "tls-key" .Values.tls.keyKey "tls-client-ca" .Values.tls.clientCaKey))
-}}
{{- if eq .Values.store "redis" -}}
{{- with .Values.redis.tls -}}
{{- $secrets = append $secrets (dict "volume" "redis-tls" "secret" .secret "files" (dict "redis-ca" .caKey "redis-cert" .certKey "redis-key" .keyKey)) -}}
{{- end -}}
{{- end -}}
{{- $used := list -}}
{{- range $secrets -}}
{{- if .secret }}{{ $used = append $used . }}{{ end -}}
{{- end -}}
{{- toJson $used -}}
{{- end -}}

{{/* Arguments for a map of flags. A switch has no value. Helm reads numbers as floating point, which `%v` may print as 1e+06. */}}
{{- define "divvy.flags" -}}
{{- range $flag, $value := . }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $flag }}
{{- end }}
{{- else if kindIs "string" $value }}
- {{ printf "--%s=%s" $flag $value | quote }}
{{- else }}
- --{{ $flag }}={{ int64 $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "divvy.args" -}}
- serve
- /etc/divvy/{{ .Values.rules.file }}
- --store={{ .Values.store }}
{{- if eq .Values.store "rocksdb" }}
- --data-dir=/var/lib/divvy/divvy-data
{{- end }}
- --listen={{ .Values.listeners.line | ternary (printf "%s:8321" .Values.listeners.address) "none" }}
- --http-listen={{ .Values.listeners.address }}:8322
- --grpc-listen={{ .Values.listeners.grpc | ternary (printf "%s:8323" .Values.listeners.address) "none" }}
- --resp-listen={{ .Values.listeners.resp | ternary (printf "%s:9049" .Values.listeners.address) "none" }}
{{- range $secret := include "divvy.secrets" . | fromJsonArray }}
{{- range $flag, $key := $secret.files }}
{{- if $key }}
- --{{ $flag }}=/run/secrets/divvy/{{ $secret.volume }}/{{ $key }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.tls.secret }}
- --tls-fronts={{ .Values.tls.fronts | join "," }}
{{- end }}
- --drain-delay={{ .Values.drain.delaySeconds }}s
- --drain-timeout={{ .Values.drain.timeoutSeconds }}s
{{- include "divvy.flags" .Values.flags }}
{{- include "divvy.flags" (index .Values .Values.store).flags }}
{{- end -}}

{{/* The password is above the URL, because Kubernetes expands only variables that are defined before. */}}
{{- define "divvy.env" -}}
{{- if eq .Values.store "redis" }}
{{- with .Values.redis }}
{{- if .passwordSecret.name }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .passwordSecret.name | quote }}, key: {{ .passwordSecret.key | quote }}}
{{- end }}
- name: DIVVY_REDIS_URL
{{- if .urlSecret.name }}
  valueFrom:
    secretKeyRef: {name: {{ .urlSecret.name | quote }}, key: {{ .urlSecret.key | quote }}}
{{- else }}
  value: {{ .url | quote }}
{{- end }}
{{- if .sentinelSecret.name }}
- name: DIVVY_REDIS_SENTINEL_AUTH
  valueFrom:
    secretKeyRef: {name: {{ .sentinelSecret.name | quote }}, key: {{ .sentinelSecret.key | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
