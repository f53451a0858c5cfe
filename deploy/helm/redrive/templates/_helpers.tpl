{{/* Name of all objects: the release's, with the chart's name unless the release's contains it. */}}
{{- define "redrive.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of the release. */}}
{{- define "redrive.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "redrive.labels" -}}
{{ include "redrive.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The component that serves the API. */}}
{{- define "redrive.apiComponent" -}}
{{- if eq .Values.mode "single" }}single{{ else }}api{{ end -}}
{{- end -}}

{{- define "redrive.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* URL of the cluster's database. */}}
{{- define "redrive.databaseUrl" -}}
{{- required "database.url is required with mode=cluster: postgres://USER@HOST:PORT/DATABASE, without the password" .Values.database.url -}}
{{- end -}}

{{/* Ports of the cluster's servers, separated by commas: those in the URLs, or the defaults of their schemes, and storePorts. */}}
{{- define "redrive.storePorts" -}}
{{- $defaults := dict "postgres" "5432" "postgresql" "5432" "redis" "6379" "rediss" "6379" "amqp" "5672" "amqps" "5671" -}}
{{- $ports := list -}}
{{- range list (include "redrive.databaseUrl" .) .Values.redis.url .Values.amqp.url -}}
{{- with . -}}
{{- $default := get $defaults (splitList "://" . | first) -}}
{{- $servers := regexReplaceAll "[/?].*$" (regexReplaceAll "^[a-z]+://([^/@]*@)?" . "") "" -}}
{{- range splitList "," $servers -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.networkPolicy.storePorts -}}
{{- $ports = append $ports (. | toString) -}}
{{- end -}}
{{- join "," $ports -}}
{{- end -}}

{{- define "redrive.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
# Lets the process read the mounted secret, which root owns, and write to its volume.
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "redrive.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{/*
Pod template of a node. Arguments: root, component (api, worker or single), values (of the component), args (the role's flags).
*/}}
{{- define "redrive.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "redrive.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  annotations:
    # Changed settings restart the nodes.
    checksum/config: {{ include (print $root.Template.BasePath "/configmap.yaml") $root | sha256sum }}
spec:
  serviceAccountName: {{ include "redrive.fullname" $root }}
  automountServiceAccountToken: false
  # Service links are environment variables such as REDRIVE_PORT, which begin like the settings of Redrive.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "redrive.podSecurityContext" $root | nindent 4 }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if ne .component "single" }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "redrive.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.component }}
    {{- end }}
  {{- end }}
  containers:
    - name: redrive
      image: {{ include "redrive.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        {{- concat (list "serve" "--config" "/etc/redrive/redrive.toml") .args | toYaml | nindent 8 }}
      env:
        # The name of the node, recorded with every attempt.
        - name: REDRIVE_NODE
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
      envFrom:
        - configMapRef:
            name: {{ include "redrive.fullname" $root }}-environment
      ports:
        - name: http
          containerPort: 8080
      startupProbe:
        httpGet:
          path: /readyz
          port: http
        periodSeconds: 2
        failureThreshold: 60
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      # Only the process itself: restarting it does not help against an unavailable database.
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- if ne .component "worker" }}
      lifecycle:
        preStop:
          # A draining node accepts no requests. The pause lets load balancers learn of its end first.
          sleep:
            seconds: 5
      {{- end }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      securityContext:
        {{- include "redrive.containerSecurityContext" $root | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: /etc/redrive
          readOnly: true
        - name: secrets
          mountPath: /run/secrets/redrive
          readOnly: true
        {{- if eq .component "single" }}
        - name: data
          mountPath: /var/lib/redrive
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "redrive.fullname" $root }}
    - name: secrets
      secret:
        secretName: {{ $root.Values.existingSecret }}
        # Redrive refuses secret files that all users may read, which the default of 0644 permits.
        defaultMode: 0440
{{- end -}}
