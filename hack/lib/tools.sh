# What hack/test, hack/demo and hack/bench share. Sourced, with the repository's root as working folder.
# shellcheck shell=bash

# Says what comes, and how long that usually takes.
say() { printf '\n\033[1m== %s\033[0m (%s)\n' "$1" "$2"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}

need() { command -v "$1" >/dev/null 2>&1 || die "$1 is missing" "install it: $2"; }

# The Go that hack/testenv builds with.
GO_VERSION=$(sed -n 's/^readonly GO_MINIMUM=//p' hack/testenv/lib/build.sh)
readonly GO_VERSION

# Whether a version is no older than another.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# The tools everything needs; Rust is installed by rustup where it is missing.
need_tools() {
  need git 'apt-get install git, or https://git-scm.com'
  need cc 'apt-get install gcc libc6-dev'
  need curl 'apt-get install curl'
  if ! command -v cargo >/dev/null 2>&1 && [[ -x $HOME/.cargo/bin/cargo ]]; then
    export PATH=$HOME/.cargo/bin:$PATH
  fi
  if ! command -v cargo >/dev/null 2>&1; then
    echo 'Installing rustup, which fetches the toolchain that rust-toolchain.toml names.'
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none
    export PATH=$HOME/.cargo/bin:$PATH
  fi
  # The first call fetches the pinned toolchain where it is missing.
  cargo --version
  if ! command -v go >/dev/null 2>&1 && [[ -x /usr/local/go/bin/go ]]; then
    export PATH=/usr/local/go/bin:$PATH
  fi
  need go "https://go.dev/dl ($GO_VERSION or newer); the control plane is built with it"
  local found
  # What is installed, not what a toolchain line of some module would fetch.
  found=$(GOTOOLCHAIN=local go env GOVERSION)
  found=${found#go}
  at_least "$found" "$GO_VERSION" || die "go is $found, and $GO_VERSION or newer is needed" 'install it: https://go.dev/dl'
  echo "go $found"
}
