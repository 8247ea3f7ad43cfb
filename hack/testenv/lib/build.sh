# Building the tools into the cache. Sourced by testenv.
# shellcheck shell=bash disable=SC2034

readonly GO_MINIMUM=1.26

# Each tool: its name, the module folder that pins it, and the package to build.
# With "files:MODULE:FOLDER" in place of the package, that folder of the module
# is copied. The version is in the module folder's go.mod, and nowhere else.
readonly TOOLS='
kube-apiserver             tools/kubernetes           k8s.io/kubernetes/cmd/kube-apiserver
kube-controller-manager    tools/kubernetes           k8s.io/kubernetes/cmd/kube-controller-manager
kube-scheduler             tools/kubernetes           k8s.io/kubernetes/cmd/kube-scheduler
kubectl                    tools/kubernetes           k8s.io/kubernetes/cmd/kubectl
etcd                       tools/etcd                 go.etcd.io/etcd/server/v3
kwok                       tools/kwok                 sigs.k8s.io/kwok/cmd/kwok
kwok-stages                tools/kwok                 files:sigs.k8s.io/kwok:kustomize/stage
source-controller          tools/source-controller    github.com/fluxcd/source-controller
source-controller-crds     tools/source-controller    files:github.com/fluxcd/source-controller:config/crd/bases
kustomize-controller       tools/kustomize-controller github.com/fluxcd/kustomize-controller
kustomize-controller-crds  tools/kustomize-controller files:github.com/fluxcd/kustomize-controller:config/crd/bases
registry                   tools/registry             github.com/distribution/distribution/v3/cmd/registry
versitygw                  tools/versitygw            github.com/versity/versitygw/cmd/versitygw
helm                       tools/helm                 helm.sh/helm/v3/cmd/helm
kustomize                  tools/kustomize            sigs.k8s.io/kustomize/kustomize/v5
sops                       tools/sops                 github.com/getsops/sops/v3/cmd/sops
flagger                    tools/flagger              github.com/fluxcd/flagger/cmd/flagger
flagger-crds               tools/flagger              files:github.com/fluxcd/flagger:artifacts/flagger
pki                        cmd                        ./pki
freeports                  cmd                        ./freeports
probe                      cmd                        ./probe
githttp                    cmd                        ./githttp
eventsink                  cmd                        ./eventsink
ocipush                    cmd                        ./ocipush
s3put                      cmd                        ./s3put
'

declare -rA GROUPS_OF_TOOLS=(
  [core]='etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok kwok-stages
    source-controller-crds pki freeports probe'
  [flux]='source-controller registry versitygw githttp eventsink ocipush s3put'
  [clients]='helm kustomize sops'
  [bench]='kustomize-controller kustomize-controller-crds'
  [flagger]='flagger flagger-crds'
)

# From nothing, on two cores that do nothing else.
declare -rA USUAL_TIME=(
  [tools/kubernetes]='7 minutes' [tools/etcd]='25 seconds' [tools/kwok]='a minute'
  [tools/source-controller]='3 minutes' [tools/kustomize-controller]='3 minutes'
  [tools/registry]='a minute' [tools/versitygw]='75 seconds' [tools/helm]='75 seconds'
  [tools/kustomize]='15 seconds' [tools/sops]='a minute' [tools/flagger]='90 seconds'
  [cmd]='half a minute'
)

declare -A FAMILY=() PACKAGE=() KEY=()

load_tools() {
  local name family package
  while read -r name family package; do
    [[ -n $name ]] || continue
    FAMILY[$name]=$family
    PACKAGE[$name]=$package
  done <<<"$TOOLS"
}

# The version go.mod pins a module to.
pinned() {
  awk -v module="$2" '$1 == "require" { $1 = ""; $0 = $0 } $1 == module { print $2; exit }' "$HERE/$1/go.mod"
}

ldflags() {
  local flags='-s -w' version package
  if [[ $1 == tools/kubernetes ]]; then
    # Clients that ask the server for its version fail without these.
    version=$(pinned "$1" k8s.io/kubernetes)
    [[ $version =~ ^v([0-9]+)\.([0-9]+)\. ]]
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      flags+=" -X $package.gitVersion=$version -X $package.gitMajor=${BASH_REMATCH[1]}"
      flags+=" -X $package.gitMinor=${BASH_REMATCH[2]} -X $package.gitTreeState=clean"
    done
  fi
  printf '%s' "$flags"
}

# What a family is built from, as 12 hex digits: its go.mod and go.sum, for our
# own commands their source too, the flags, and the kind of machine.
set_key() {
  local family=$1
  [[ -z ${KEY[$family]:-} ]] || return 0
  local sum
  sum=$(
    cd "$HERE/$family" || exit
    {
      cat go.mod go.sum
      [[ $family != cmd ]] || cat ./*/*.go
      ldflags "$family"
      uname -sm
    } | sha256sum
  )
  KEY[$family]=${sum:0:12}
}

folder_of() {
  set_key "$1"
  printf '%s/%s-%s' "$CACHE" "${1##*/}" "${KEY[$1]}"
}

# Where a tool is, or will be once it is built.
path_of() {
  if [[ -n ${KUBEBUILDER_ASSETS:-} && $1 =~ ^(kube-apiserver|etcd|kubectl)$ && -x $KUBEBUILDER_ASSETS/$1 ]]; then
    printf '%s/%s' "$(realpath "$KUBEBUILDER_ASSETS")" "$1"
  else
    printf '%s/%s' "$(folder_of "${FAMILY[$1]}")" "$1"
  fi
}

built() { [[ -e $(path_of "$1") ]]; }

# Prints the tools that groups (or tools by name) stand for.
tools_of() {
  local name
  for name in "$@"; do
    if [[ -n ${GROUPS_OF_TOOLS[$name]:-} ]]; then
      # shellcheck disable=SC2086
      printf '%s\n' ${GROUPS_OF_TOOLS[$name]}
    elif [[ -n ${FAMILY[$name]:-} ]]; then
      printf '%s\n' "$name"
    else
      usage_error "no group or tool is called \"$name\"; groups are: ${!GROUPS_OF_TOOLS[*]}"
    fi
  done
}

missing_of() {
  local tool
  for tool in $(tools_of "$@"); do
    built "$tool" || printf '%s\n' "$tool"
  done
}

# Builds what is missing of the groups named.
build() {
  local family missing
  missing=$(missing_of "$@")
  [[ -n $missing ]] || return 0
  need_go
  mkdir -p "$CACHE"
  exec 9>"$CACHE/build.lock"
  if ! flock -n 9; then
    say 'another build is going on: waiting for it'
    flock 9
  fi
  # What a build that was killed has left: nobody else builds now.
  rm -rf "$CACHE"/.build-*

  missing=$(missing_of "$@")
  for family in $(for tool in $missing; do printf '%s\n' "${FAMILY[$tool]}"; done | awk '!seen[$0]++'); do
    local tools=() tool
    for tool in $missing; do
      [[ ${FAMILY[$tool]} != "$family" ]] || tools+=("$tool")
    done
    build_family "$family" "${tools[@]}"
  done
  exec 9>&-
}

build_family() {
  local family=$1 start=$SECONDS folder scratch log tool packages=()
  shift
  folder=$(folder_of "$family")
  scratch=$(mktemp -d "$CACHE/.build-XXXXXXXX")
  log=$CACHE/build-${family##*/}.log
  for tool in "$@"; do
    [[ ${PACKAGE[$tool]} == files:* ]] || packages+=("${PACKAGE[$tool]}")
  done
  if ((${#packages[@]})); then
    say "building $* (${USUAL_TIME[$family]} from nothing) ..."
  else
    say "fetching $* ..."
  fi

  if ! (
    cd "$HERE/$family" || exit
    export CGO_ENABLED=0 GOWORK=off GOFLAGS=
    if ((${#packages[@]})); then
      go build ${STAGESET_TESTENV_JOBS:+-p "$STAGESET_TESTENV_JOBS"} -trimpath -buildvcs=false -mod=readonly \
        -ldflags "$(ldflags "$family")" -o "$scratch/" "${packages[@]}" || exit
    fi
    for tool in "$@"; do
      take "$scratch" "$tool" || exit
    done
  ) >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -rf "$scratch"
    die "building $* failed" "the whole log: $log"
  fi

  mkdir -p "$folder"
  for tool in "$@"; do
    rm -rf "${folder:?}/$tool"
    mv -T "$scratch/$tool" "$folder/$tool"
  done
  rm -rf "$scratch"
  say "built $* in $(seconds_since "$start")"
}

# Leaves a tool in the scratch folder under its own name.
take() {
  local scratch=$1 tool=$2 package=${PACKAGE[$2]} name module
  case $package in
  files:*)
    IFS=: read -r _ module name <<<"$package"
    go mod download "$module"
    cp -r "$(go list -m -f '{{.Dir}}' "$module")/$name" "$scratch/$tool"
    # The module cache is read-only, and would stay so.
    chmod -R u+w "$scratch/$tool"
    ;;
  *)
    name=${package##*/}
    # Go names the program of .../server/v3 "server".
    [[ ! $name =~ ^v[0-9]+$ ]] || { package=${package%/*} && name=${package##*/}; }
    [[ $name == "$tool" ]] || mv "$scratch/$name" "$scratch/$tool"
    ;;
  esac
}
