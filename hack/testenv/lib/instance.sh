# One running control plane. Sourced by testenv.
# shellcheck shell=bash

readonly CORE_COMPONENTS='etcd kube-apiserver kube-controller-manager kube-scheduler kwok'
readonly FLUX_COMPONENTS='githttp registry versitygw eventsink source-controller'
readonly PORTS='etcd etcd-peer kube-apiserver kwok githttp registry versitygw eventsink source-controller source-controller-metrics source-controller-health'
readonly NODES='testenv-0 testenv-1 testenv-2'
readonly S3_ACCESS_KEY=testenv S3_SECRET_KEY=testenv-secret
readonly SERVICE_IPS=10.0.0.0/16 SERVICE_IP=10.0.0.1 POD_IPS=10.64.0.1/10

declare -A PORT=()

use_instance() {
  NAME=$1
  [[ $NAME =~ ^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
    usage_error "\"$NAME\" is no name for an instance: up to 40 of a-z, 0-9 and - (neither first nor last)"
  RUN=$(realpath -m "${STAGESET_TESTENV_RUN:-$CACHE/run}")
  INSTANCE=$RUN/$NAME
}

lock_instance() {
  mkdir -p "$RUN"
  exec 8>"$RUN/.$NAME.lock"
  if ! flock -n 8; then
    say "something else is working on instance \"$NAME\": waiting for it"
    flock 8
  fi
}

has_flux() { [[ -e $INSTANCE/with-flux ]]; }

components() {
  printf '%s' "$CORE_COMPONENTS"
  ! has_flux || printf ' %s' "$FLUX_COMPONENTS"
}

all_alive() {
  local component
  for component in $(components); do
    alive "$component" || return 1
  done
}

# Like all that is run while the lock is held, without the lock: it would keep it
# for a while after an `up` that is killed.
kubectl() { "$(path_of kubectl)" --kubeconfig "$INSTANCE/kubeconfig" "$@" 8>&-; }

load_ports() {
  local name port
  PORT=()
  [[ -r $INSTANCE/ports ]] || return 1
  while read -r name port; do PORT[$name]=$port; done <"$INSTANCE/ports"
}

# Takes the ports of last time where they are still free. Once anything of the
# instance runs, its ports stay.
choose_ports() {
  local file name others='' old='' found
  if load_ports; then
    [[ -z $(own_pids) ]] || return 0
    for name in $PORTS; do old+=" ${PORT[$name]:-0}"; done
  fi
  for file in "$RUN"/*/ports; do
    [[ ! -r $file || $file == "$INSTANCE/ports" ]] || others+=" $(awk '{print $2}' "$file" | tr '\n' ' ')"
  done
  # shellcheck disable=SC2086
  found=$("$(path_of freeports)" -prefer "$old" -avoid "$others" "$(wc -w <<<"$PORTS")")
  # shellcheck disable=SC2086
  paste -d ' ' <(printf '%s\n' $PORTS) <(printf '%s\n' "$found") >"$INSTANCE/ports.tmp"
  mv "$INSTANCE/ports.tmp" "$INSTANCE/ports"
  load_ports
}

apiserver_url() { printf 'https://127.0.0.1:%s' "${PORT[kube-apiserver]}"; }

# Writes standard input to a file, all or nothing.
write() {
  cat >"$1.tmp"
  mv "$1.tmp" "$1"
}

write_config() {
  "$(path_of pki)" -dir "$INSTANCE/pki" \
    -names "127.0.0.1,$SERVICE_IP,localhost,kubernetes,kubernetes.default,kubernetes.default.svc,kubernetes.default.svc.cluster.local"
  [[ -s $INSTANCE/admin-token ]] ||
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' | write "$INSTANCE/admin-token"
  local token
  token=$(<"$INSTANCE/admin-token")
  chmod 600 "$INSTANCE/admin-token"
  write "$INSTANCE/tokens.csv" <<<"$token,testenv-admin,testenv-admin,system:masters"
  write "$INSTANCE/kubeconfig" <<-YAML
	apiVersion: v1
	kind: Config
	clusters:
	  - name: testenv
	    cluster:
	      server: $(apiserver_url)
	      certificate-authority-data: $(base64 -w 0 "$INSTANCE/pki/ca.crt")
	users:
	  - name: testenv-admin
	    user:
	      token: $token
	contexts:
	  - name: testenv
	    context: {cluster: testenv, user: testenv-admin, namespace: default}
	current-context: testenv
	YAML
  chmod 600 "$INSTANCE/kubeconfig" "$INSTANCE/tokens.csv"
  write "$INSTANCE/registry.yaml" <<-YAML
	version: 0.1
	log: {level: info, accesslog: {disabled: true}}
	storage:
	  filesystem: {rootdirectory: $INSTANCE/oci}
	  delete: {enabled: true}
	  maintenance: {uploadpurging: {enabled: false}}
	http: {addr: "127.0.0.1:${PORT[registry]}"}
	YAML
}

# kwok's own stages and ours, in the one file that kwok takes.
stages() {
  local kwok file
  kwok=$(path_of kwok-stages)
  for file in "$kwok"/{node/fast,node/heartbeat-with-lease,pod/fast,volume/fast}/*.yaml "$HERE"/stages/*.yaml; do
    grep -q '^kind: Stage$' "$file" || continue
    printf -- '---\n'
    cat "$file"
  done
}

start_etcd() {
  alive etcd || start etcd "$(path_of etcd)" \
    --name=testenv --data-dir="$INSTANCE/etcd" --unsafe-no-fsync --log-level=warn \
    --quota-backend-bytes=8589934592 \
    --listen-client-urls="http://127.0.0.1:${PORT[etcd]}" \
    --advertise-client-urls="http://127.0.0.1:${PORT[etcd]}" \
    --listen-peer-urls="http://127.0.0.1:${PORT[etcd-peer]}" \
    --initial-advertise-peer-urls="http://127.0.0.1:${PORT[etcd-peer]}" \
    --initial-cluster="testenv=http://127.0.0.1:${PORT[etcd-peer]}"
}

start_apiserver() {
  local pki=$INSTANCE/pki
  alive kube-apiserver || start kube-apiserver "$(path_of kube-apiserver)" \
    --etcd-servers="http://127.0.0.1:${PORT[etcd]}" \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="${PORT[kube-apiserver]}" \
    --endpoint-reconciler-type=none \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --client-ca-file="$pki/ca.crt" --token-auth-file="$INSTANCE/tokens.csv" \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$pki/service-account.pub" \
    --service-account-signing-key-file="$pki/service-account.key" \
    --service-cluster-ip-range="$SERVICE_IPS" \
    --authorization-mode=Node,RBAC --allow-privileged=true \
    --max-requests-inflight=4000 --max-mutating-requests-inflight=2000 \
    --audit-policy-file="$HERE/config/audit-policy.yaml" --audit-log-path="$INSTANCE/audit.log" \
    --audit-log-maxsize=1024 --audit-log-maxbackup=2
}

start_controller_manager() {
  local pki=$INSTANCE/pki
  alive kube-controller-manager || start kube-controller-manager "$(path_of kube-controller-manager)" \
    --kubeconfig="$INSTANCE/kubeconfig" --secure-port=0 --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file="$pki/service-account.key" \
    --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --kube-api-qps=300 --kube-api-burst=600
}

start_scheduler() {
  alive kube-scheduler || start kube-scheduler "$(path_of kube-scheduler)" \
    --kubeconfig="$INSTANCE/kubeconfig" --secure-port=0 --leader-elect=false \
    --kube-api-qps=300 --kube-api-burst=600
}

start_kwok() {
  stages >"$INSTANCE/stages.yaml.new"
  if ! cmp -s "$INSTANCE/stages.yaml.new" "$INSTANCE/stages.yaml"; then
    stop kwok
    mv "$INSTANCE/stages.yaml.new" "$INSTANCE/stages.yaml"
  else
    rm "$INSTANCE/stages.yaml.new"
  fi
  alive kwok && return
  # A new kwok would wait until the leases of the one before have run out.
  kubectl delete leases --namespace kube-node-lease --all >/dev/null 2>&1 || true
  start kwok "$(path_of kwok)" \
    --kubeconfig="$INSTANCE/kubeconfig" --config="$INSTANCE/stages.yaml" \
    --manage-all-nodes --node-lease-duration-seconds=40 --cidr="$POD_IPS" \
    --server-address="127.0.0.1:${PORT[kwok]}"
}

# The servers that Flux's sources are read from, and the one for its events.
start_servers() {
  mkdir -p "$INSTANCE"/{git,oci,s3,metadata-of-s3}
  alive githttp || start githttp "$(path_of githttp)" -root "$INSTANCE/git" -addr "127.0.0.1:${PORT[githttp]}"
  alive registry || start registry env OTEL_TRACES_EXPORTER=none "$(path_of registry)" serve "$INSTANCE/registry.yaml"
  alive versitygw || start versitygw "$(path_of versitygw)" --quiet \
    --access "$S3_ACCESS_KEY" --secret "$S3_SECRET_KEY" --region us-east-1 \
    --port "127.0.0.1:${PORT[versitygw]}" --health /healthz \
    posix --sidecar "$INSTANCE/metadata-of-s3" "$INSTANCE/s3"
  alive eventsink || start eventsink "$(path_of eventsink)" \
    -addr "127.0.0.1:${PORT[eventsink]}" \
    -file "$INSTANCE/events.jsonl" -rejected "$INSTANCE/events-rejected.jsonl"
}

start_source_controller() {
  mkdir -p "$INSTANCE/artifacts"
  alive source-controller || start source-controller \
    env RUNTIME_NAMESPACE=flux-system KUBECONFIG="$INSTANCE/kubeconfig" TUF_ROOT="$INSTANCE/tuf" \
    "$(path_of source-controller)" \
    --storage-path="$INSTANCE/artifacts" \
    --storage-addr="127.0.0.1:${PORT[source-controller]}" \
    --storage-adv-addr="127.0.0.1:${PORT[source-controller]}" \
    --metrics-addr="127.0.0.1:${PORT[source-controller-metrics]}" \
    --health-addr="127.0.0.1:${PORT[source-controller-health]}" \
    --enable-leader-election=false --watch-all-namespaces=true --concurrent=4
}

create_objects() {
  local node
  for node in $NODES; do
    printf -- '---\n'
    sed "s/NAME/$node/" "$HERE/config/node.yaml"
  done | kubectl create -f - >"$INSTANCE/logs/create-nodes.log" 2>&1 || true
  kubectl apply --server-side --force-conflicts \
    -f "$HERE/config/bootstrap.yaml" -f "$(path_of source-controller-crds)" >"$INSTANCE/logs/bootstrap.log" 2>&1 || {
    cat "$INSTANCE/logs/bootstrap.log" >&2
    die 'creating the first objects failed'
  }
}

# Waits until pods can be created, scheduled and run.
await_cluster() {
  kubectl wait --for=create --timeout=60s serviceaccount/default --namespace default >/dev/null ||
    failed kube-controller-manager 'creates no service accounts'
  # shellcheck disable=SC2086
  kubectl wait --for=condition=Ready --timeout=90s node $NODES >/dev/null || failed kwok 'gets no node ready'
  local deadline=$((SECONDS + 60))
  # shellcheck disable=SC2086
  while [[ -n $(kubectl get node $NODES -o 'jsonpath={.items[*].spec.taints}') ]]; do
    ((SECONDS < deadline)) || failed kube-controller-manager 'leaves nodes tainted'
    sleep 0.1
  done
  kubectl wait --for=condition=Established --timeout=30s crd \
    gitrepositories.source.toolkit.fluxcd.io ocirepositories.source.toolkit.fluxcd.io \
    buckets.source.toolkit.fluxcd.io externalartifacts.source.toolkit.fluxcd.io >/dev/null ||
    failed kube-apiserver 'does not serve the Flux types'
}

# One folder for PATH, with whatever is built.
link_tools() {
  local tool path
  mkdir -p "$INSTANCE/bin"
  for tool in kubectl helm kustomize sops ocipush s3put flagger kustomize-controller; do
    path=$(path_of "$tool")
    [[ ! -x $path ]] || ln -sfn "$path" "$INSTANCE/bin/$tool"
  done
}

up() {
  local flux=$1 begin=$SECONDS component
  lock_instance
  mkdir -p "$INSTANCE/logs"
  if [[ $flux == yes && ! -e $INSTANCE/with-flux ]]; then
    : >"$INSTANCE/with-flux"
    rm -f "$INSTANCE/ready"
  fi
  ! has_flux || need_git

  if [[ -e $INSTANCE/ready ]] && all_alive && load_ports && cmp -s <(stages) "$INSTANCE/stages.yaml" &&
    "$(path_of probe)" -timeout 2s -ca "$INSTANCE/pki/ca.crt" "$(apiserver_url)/readyz" 2>/dev/null; then
    link_tools
    say "\"$NAME\" is up already"
    return
  fi

  rm -f "$INSTANCE/ready"
  choose_ports
  write_config
  start_etcd
  ! has_flux || start_servers
  await etcd 30s "http://127.0.0.1:${PORT[etcd]}/health"
  start_apiserver
  await kube-apiserver 120s "$(apiserver_url)/readyz"
  start_controller_manager
  start_scheduler
  create_objects
  start_kwok
  ! has_flux || start_source_controller
  await kwok 60s "http://127.0.0.1:${PORT[kwok]}/healthz"
  await_cluster
  if has_flux; then
    await githttp 20s "http://127.0.0.1:${PORT[githttp]}/healthz"
    await registry 30s "http://127.0.0.1:${PORT[registry]}/v2/"
    await versitygw 30s "http://127.0.0.1:${PORT[versitygw]}/healthz"
    await eventsink 20s "http://127.0.0.1:${PORT[eventsink]}/healthz"
    await source-controller 90s "http://127.0.0.1:${PORT[source-controller-health]}/readyz"
  fi
  for component in $(components); do
    alive "$component" || failed "$component" 'has stopped'
  done
  link_tools
  : >"$INSTANCE/ready"
  say "\"$NAME\" is up after $(seconds_since "$begin"); next: eval \"\$($0 env --name $NAME)\""
}

down() {
  local keep=$1
  if [[ ! -d $INSTANCE ]] && [[ -z $(own_pids) ]]; then
    say "there is no instance \"$NAME\": nothing to do"
    return
  fi
  lock_instance
  if [[ $keep == yes ]]; then
    rm -f "$INSTANCE/ready"
    stop_all gently
    say "\"$NAME\" is down; its data is in $INSTANCE"
  else
    stop_all
    rm -rf "$INSTANCE"
    say "\"$NAME\" is down, and its data gone"
  fi
}

status() {
  [[ -d $INSTANCE ]] || die "there is no instance \"$NAME\"" "start it: $0 up --name $NAME"
  load_ports || true
  local component pid address code=0
  for component in $(components); do
    address=${PORT[$component]:+127.0.0.1:${PORT[$component]}}
    if pid=$(pid_of "$component"); then
      printf '%-24s up    %-22s pid %s\n' "$component" "${address:--}" "$pid"
    else
      printf '%-24s DOWN  %-22s log %s\n' "$component" "${address:--}" "$INSTANCE/logs/$component.log"
      code=1
    fi
  done
  return "$code"
}

# Prints KEY VALUE lines.
variables() {
  printf '%s %s\n' \
    KUBECONFIG "$INSTANCE/kubeconfig" \
    TESTENV_NAME "$NAME" \
    TESTENV_DATA "$INSTANCE" \
    TESTENV_LOGS "$INSTANCE/logs" \
    TESTENV_BIN "$INSTANCE/bin" \
    TESTENV_APISERVER_URL "$(apiserver_url)" \
    TESTENV_CA_FILE "$INSTANCE/pki/ca.crt" \
    TESTENV_ADMIN_TOKEN "$(<"$INSTANCE/admin-token")" \
    TESTENV_AUDIT_LOG "$INSTANCE/audit.log" \
    TESTENV_SOURCE_CRDS "$(path_of source-controller-crds)"
  if has_flux; then
    printf '%s %s\n' \
      TESTENV_GIT_URL "http://127.0.0.1:${PORT[githttp]}" \
      TESTENV_GIT_ROOT "$INSTANCE/git" \
      TESTENV_OCI_ADDR "127.0.0.1:${PORT[registry]}" \
      TESTENV_S3_ENDPOINT "127.0.0.1:${PORT[versitygw]}" \
      TESTENV_S3_ROOT "$INSTANCE/s3" \
      TESTENV_S3_ACCESS_KEY "$S3_ACCESS_KEY" \
      TESTENV_S3_SECRET_KEY "$S3_SECRET_KEY" \
      TESTENV_S3_REGION us-east-1 \
      TESTENV_EVENTS_URL "http://127.0.0.1:${PORT[eventsink]}/" \
      TESTENV_EVENTS_FILE "$INSTANCE/events.jsonl" \
      TESTENV_EVENTS_REJECTED_FILE "$INSTANCE/events-rejected.jsonl" \
      TESTENV_SOURCE_CONTROLLER_ADDR "127.0.0.1:${PORT[source-controller]}"
  fi
  local component name
  for component in $(components); do
    name=${component^^}
    printf '%s %s\n' "TESTENV_PID_${name//-/_}" "$(pid_of "$component" || true)"
  done
}

print_env() {
  local format=$1 key value separator=''
  if [[ ! -e $INSTANCE/ready ]] || ! load_ports; then
    die "instance \"$NAME\" is not up" "start it: $0 up --name $NAME"
  fi
  link_tools
  if [[ $format == json ]]; then
    printf '{'
    while read -r key value; do
      value=${value//\\/\\\\}
      printf '%s\n  "%s": "%s"' "$separator" "$key" "${value//\"/\\\"}"
      separator=,
    done < <(variables)
    printf '\n}\n'
  else
    while read -r key value; do
      printf 'export %s=%q\n' "$key" "$value"
    done < <(variables)
    # shellcheck disable=SC2016
    printf 'export PATH=%q:"$PATH"\n' "$INSTANCE/bin"
  fi
}
