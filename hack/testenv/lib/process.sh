# The processes of an instance. Sourced by testenv; INSTANCE is its folder.
# shellcheck shell=bash

# A process is ours if it carries the instance's folder in its environment. It
# is started with that, and writes its own pid file, so there is no moment in
# which a killed `up` could leave one that nobody knows about.
readonly MARK=STAGESET_TESTENV_INSTANCE

start() {
  local component=$1
  shift
  mkdir -p "$INSTANCE/pids" "$INSTANCE/logs"
  rm -f "$INSTANCE/pids/$component"
  # shellcheck disable=SC2016
  env "$MARK=$INSTANCE" setsid bash -c '
    cd / && printf "%s\n" "$$" >"$1.tmp" && mv "$1.tmp" "$1" && shift && exec "$@"' \
    testenv "$INSTANCE/pids/$component" "$@" \
    >>"$INSTANCE/logs/$component.log" 2>&1 </dev/null 8>&- 9>&- &
  local child=$! deadline=$((SECONDS + 20))
  disown "$child"
  until pid_of "$component" >/dev/null; do
    if ((SECONDS >= deadline)) || ! kill -0 "$child" 2>/dev/null; then
      failed "$component" 'did not start'
    fi
    sleep 0.01
  done
}

ours() { grep -qzxF "$MARK=$INSTANCE" "/proc/$1/environ" 2>/dev/null; }

# Prints the pid of a component that is up.
pid_of() {
  local pid
  [[ -r $INSTANCE/pids/$1 ]] && read -r pid <"$INSTANCE/pids/$1" && ours "$pid" && printf '%s' "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# All pids of the instance, whether they have a pid file or not.
own_pids() {
  { grep -lzxF "$MARK=$INSTANCE" /proc/[0-9]*/environ 2>/dev/null || true; } | cut -d / -f 3
}

# Waits until a component answers.
await() {
  local component=$1 timeout=$2 url=$3 pid
  pid=$(pid_of "$component") || failed "$component" 'has stopped'
  "$(path_of probe)" -timeout "$timeout" -ca "$INSTANCE/pki/ca.crt" -pid "$pid" "$url" 8>&- ||
    failed "$component" 'does not answer'
}

failed() {
  local component=$1 log=$INSTANCE/logs/$1.log
  [[ ! -s $log ]] || tail -n 25 "$log" >&2
  die "$component $2" "its log: $log" "to start afresh: $0 down --name $NAME, and up again"
}

# A process that is ending has lost its environment before it lets go of its
# ports, so this looks at its state. Init may leave a dead one unburied.
gone() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
  [[ ${stat##*) } == [ZX]* ]]
}

# Sends a signal to pids and waits until they are gone or the time is over.
signal_and_wait() {
  local signal=$1 seconds=$2 pid left
  shift 2
  local deadline=$((SECONDS + seconds))
  (($#)) || return 0
  kill "-$signal" "$@" 2>/dev/null || true
  while :; do
    left=0
    for pid in "$@"; do
      gone "$pid" || left=1
    done
    ((left)) || return 0
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

stop() {
  local pid
  pid=$(pid_of "$1") || return 0
  signal_and_wait TERM 5 "$pid" || signal_and_wait KILL 5 "$pid"
}

# Ends every process of the instance. With "gently", what they hold is on disk
# afterwards: etcd goes last, and has time to finish.
stop_all() {
  local etcd pids=() pid
  if [[ ${1:-} == gently ]]; then
    etcd=$(pid_of etcd || true)
    for pid in $(own_pids); do
      [[ $pid == "$etcd" ]] || pids+=("$pid")
    done
    signal_and_wait TERM 3 "${pids[@]}" || true
    pids=()
    for pid in $(own_pids); do
      [[ $pid == "$etcd" ]] || pids+=("$pid")
    done
    signal_and_wait KILL 5 "${pids[@]}" || true
    [[ -z $etcd ]] || signal_and_wait TERM 5 "$etcd" || true
  fi
  # More than once, for what they may have started in between.
  for _ in 1 2 3; do
    mapfile -t pids < <(own_pids)
    ((${#pids[@]})) || break
    signal_and_wait KILL 10 "${pids[@]}" || true
  done
  mapfile -t pids < <(own_pids)
  ((${#pids[@]} == 0)) || die "could not end: ${pids[*]}"
  rm -rf "$INSTANCE/pids"
}
